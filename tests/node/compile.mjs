// Compiles ../solidity/*.sol against the installed OpenZeppelin and writes the runtime bytecode beside each source.
// The bytecode is kept in the repository: the tests need no compiler. Run with `npm run solidity`.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import solc from "solc";

const require = createRequire(import.meta.url);
const folder = fileURLToPath(new URL("../solidity/", import.meta.url));
const openzeppelin = require("@openzeppelin/contracts/package.json").version;

for (const file of readdirSync(folder).filter((name) => name.endsWith(".sol"))) {
  const source = readFileSync(folder + file, "utf8");
  const name = file.replace(/\.sol$/, "");
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
  const readImport = (path) => ({ contents: readFileSync(require.resolve(path), "utf8") });
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: readImport }));
  const errors = (output.errors ?? []).filter((error) => error.severity === "error");
  if (errors.length > 0) {
    console.error(errors.map((error) => error.formattedMessage).join("\n"));
    process.exit(1);
  }
  const { deployedBytecode, methodIdentifiers } = output.contracts[file][name].evm;
  const compiled = {
    contract: name,
    compiler: `solc ${solc.version()}`,
    openzeppelin,
    sourceSha256: createHash("sha256").update(source).digest("hex"),
    methodIdentifiers,
    deployedBytecode: `0x${deployedBytecode.object}`,
  };
  writeFileSync(`${folder}${name}.json`, `${JSON.stringify(compiled, null, 2)}\n`);
  console.log(`${name}: ${deployedBytecode.object.length / 2} bytes`);
}
