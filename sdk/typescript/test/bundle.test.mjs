/** Tests of bundles: their size, what bundlers leave out, and programs of other module systems. */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import test from "node:test";
import { gzipSync } from "node:zlib";

import { nodeResolve } from "@rollup/plugin-node-resolve";
import * as esbuild from "esbuild";
import { rollup } from "rollup";

const PACKAGE = "@sfumato-dp/sdk";
const ROOT = new URL("..", import.meta.url).pathname;
const require = createRequire(import.meta.url);

/** Fail on a warning of Rollup, except about another package and an empty result. */
function onwarn({ code, message }) {
  if (code !== "EMPTY_BUNDLE") assert.match(message, /^node_modules\/@hpke\//);
}

const BUNDLERS = {
  async esbuild(contents) {
    const { outputFiles } = await esbuild.build({ stdin: { contents, resolveDir: ROOT }, bundle: true, minify: true, format: "esm", platform: "browser", write: false, logLevel: "error" });
    return outputFiles[0].text;
  },
  async rollup(contents) {
    const entry = { name: "entry", resolveId: (id) => (id === "entry" ? `${ROOT}entry.mjs` : null), load: (id) => (id.endsWith("/entry.mjs") ? contents : null) };
    const bundle = await rollup({ input: "entry", plugins: [entry, nodeResolve({ browser: true })], onwarn });
    const { output } = await bundle.generate({ format: "es" });
    return (await esbuild.transform(output[0].code, { minify: true, format: "esm" })).code;
  },
};

// [name, program, largest size in bytes after minifying and gzip]
const PROGRAMS = [
  ["a device in a browser", `export { Device, IndexedDbStore } from "${PACKAGE}";`, 17_000],
  ["a device in React Native", `export { Device, AsyncStorageStore } from "${PACKAGE}";`, 17_000],
  ["a device with sealed reports", `export { ShuffledDevice } from "${PACKAGE}/shuffled"; export { IndexedDbStore } from "${PACKAGE}";`, 25_000],
];

for (const [bundler, bundle] of Object.entries(BUNDLERS)) {
  for (const [name, program, limit] of PROGRAMS) {
    test(`${bundler}: ${name} is small`, async () => {
      const text = await bundle(program);
      const size = gzipSync(text, { level: 9 }).length;
      console.log(`${bundler}: ${name}: ${text.length} bytes minified, ${size} with gzip`);
      assert.ok(size > 1000 && size <= limit, `${size} bytes`);
    });
  }

  test(`${bundler} leaves out what a program does not use`, async () => {
    assert.equal((await bundle(`import "${PACKAGE}"; import "${PACKAGE}/client"; import "${PACKAGE}/shuffled";`)).trim(), "");
    const [device, client, store] = await Promise.all([`{ Device } from "${PACKAGE}"`, `{ Client } from "${PACKAGE}/client"`, `{ MemoryStore } from "${PACKAGE}"`].map((imported) => bundle(`export ${imported};`)));
    assert.ok(store.length < 3000, `${store.length} bytes`);
    assert.match(device, /threshold/);
    assert.doesNotMatch(device, /onversionchange|setItem|Idempotency-Key|Ed25519/); // no store, client or sealing
    assert.match(client, /Idempotency-Key/);
    assert.doesNotMatch(client, /threshold|onversionchange/);
  });
}

test("CommonJS programs have the same names as modules", async () => {
  for (const entry of ["", "/node", "/client", "/sealing", "/shuffled"]) {
    const [module, common] = [await import(`${PACKAGE}${entry}`), require(`${PACKAGE}${entry}`)];
    assert.deepEqual(Object.keys(common).sort(), Object.keys(module).filter((name) => name !== "default").sort());
    assert.notEqual(Object.keys(common).length, 0);
    assert.deepEqual(Object.keys(require(`${ROOT}/${entry}`)), Object.keys(common)); // by the folder, without `exports`
  }
  assert.equal(require(`${PACKAGE}/package.json`).name, PACKAGE);
});
