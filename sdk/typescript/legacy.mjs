/** Write what tools without support of `exports` read: a package.json for the CommonJS modules and one for each entry. */

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";

const { exports } = JSON.parse(readFileSync("package.json", "utf8"));
const write = (folder, manifest) => {
  mkdirSync(folder, { recursive: true });
  writeFileSync(`${folder}/package.json`, `${JSON.stringify(manifest, null, 2)}\n`);
};

write("dist/cjs", { type: "commonjs" });
for (const [entry, conditions] of Object.entries(exports)) {
  if (entry === "." || entry === "./package.json") continue;
  const parent = (path) => path.replace("./", "../");
  const { require, import: esm } = conditions;
  write(entry, { main: parent(require.default), module: parent(esm.default), types: parent(require.types), sideEffects: false });
}
