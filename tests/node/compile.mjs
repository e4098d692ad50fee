// Compiles ../solidity/*.sol and the contracts of ../../clients/solidity, and writes their runtime bytecode into ../solidity.
// The bytecode is kept in the repository: the tests need no compiler. Run with `npm run solidity`.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import solc from "solc";

const require = createRequire(import.meta.url);
const project = fileURLToPath(new URL("../../", import.meta.url));
const kept = `${project}tests/solidity/`;
const openzeppelin = require("@openzeppelin/contracts/package.json").version;

const sources = ["tests/solidity/", "clients/solidity/"].flatMap((folder) =>
  readdirSync(project + folder)
    .filter((name) => name.endsWith(".sol"))
    .map((name) => folder + name),
);

for (const file of sources) {
  const source = readFileSync(project + file, "utf8");
  const name = file.replace(/^.*\//, "").replace(/\.sol$/, "");
  const input = {
    language: "Solidity",
    sources: { [file]: { content: source } },
    settings: {
      evmVersion: "cancun",
      optimizer: { enabled: true, runs: 1_000_000 },
      metadata: { bytecodeHash: "none" },
      outputSelection: { [file]: { [name]: ["evm.deployedBytecode.object", "evm.methodIdentifiers"] } },
    },
  };
  const digest = createHash("sha256").update(source);
  const readImport = (path) => {
    if (path.startsWith("@")) return { contents: readFileSync(require.resolve(path), "utf8") };
    const contents = readFileSync(project + path, "utf8");
    digest.update(contents);
    return { contents };
  };
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: readImport }));
  const errors = (output.errors ?? []).filter((error) => error.severity === "error");
  if (errors.length > 0) {
    console.error(errors.map((error) => error.formattedMessage).join("\n"));
    process.exit(1);
  }
  const { deployedBytecode, methodIdentifiers } = output.contracts[file][name].evm;
  if (deployedBytecode.object.length === 0) continue; // an interface
  const compiled = {
    contract: name,
    compiler: `solc ${solc.version()}`,
    openzeppelin,
    sourceSha256: digest.digest("hex"),
    methodIdentifiers,
    deployedBytecode: `0x${deployedBytecode.object}`,
  };
  writeFileSync(`${kept}${name}.json`, `${JSON.stringify(compiled, null, 2)}\n`);
  console.log(`${name}: ${deployedBytecode.object.length / 2} bytes`);
}
