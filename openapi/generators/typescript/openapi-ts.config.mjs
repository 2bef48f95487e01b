/** How the TypeScript client's types are made from the API description: `npm run generate` in sdk/typescript. */

import { fileURLToPath } from "node:url";

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));

export default {
  input: path("../../openapi.json"),
  output: {
    path: path("../../../sdk/typescript/src/generated"),
    importFileExtension: ".js",
    header: "/** What goes over the wire, made from openapi.json: `npm run generate`. Not to be changed by hand. */",
  },
  logs: { file: false },
  plugins: [{ name: "@hey-api/typescript", enums: false }], // types alone: what runs is sdk/typescript/src/client.ts
};
