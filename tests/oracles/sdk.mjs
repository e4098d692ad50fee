// Creditcoin's own client package behind JSON lines: one request a line on stdin, one answer a line on stdout.
// {"id", "call", "with": {...}} -> {"id", "answer"} or {"id", "error"}. Bytes and hashes are 0x-hex strings.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const require = createRequire(new URL("../node/package.json", import.meta.url));
const { blockProver, chainInfo, encoding, proofGenerator } = require("@gluwa/cc-next-query-builder");
const { JsonRpcProvider, Network } = require("ethers");
const { KeccakMerkleTree, ZERO_HASH, computeDigestOf, computeMerkleRootOfBlock, hashInner, hashLeaf } = proofGenerator.merkle;

// The package writes its progress to the console; stdout is ours.
console.log = console.error;

// A provider that never dials: it only turns raw JSON-RPC objects into the objects that the encoder takes.
const network = Network.from(1);
const provider = new JsonRpcProvider("http://127.0.0.1:1", network, { staticNetwork: network });

function wrap(transaction) {
  const authorizations = transaction.authorizationList?.map((entry) => ({ yParity: Number(entry.yParity) })) ?? null;
  return new encoding.TransactionWithRaw(
    provider._wrapTransactionResponse(transaction, network),
    new encoding.RawTransactionResponse(authorizations),
  );
}

const wrapReceipt = (receipt) => provider._wrapTransactionReceipt(receipt, network);

// JSON.parse rounds integers beyond 2^53 without a word, so the text is searched for them as well.
function unsafeNumbers(text) {
  const outsideStrings = text.replace(/"(?:[^"\\]|\\.)*"/g, '""');
  return (outsideStrings.match(/-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g) ?? []).filter(
    (number) => !Number.isSafeInteger(Number(number)) || /[.eE]/.test(number),
  );
}

// Nodes that are there: one provider each, which asks for one thing at a time and remembers nothing.
const providers = new Map();

function providerOf(url) {
  if (!providers.has(url)) {
    providers.set(url, new JsonRpcProvider(url, undefined, { batchMaxCount: 1, cacheTimeout: -1, staticNetwork: false }));
  }
  return providers.get(url);
}

// The package spares nodes by waiting half a second before each call for a block; this one needs no sparing.
async function unhurried(work) {
  const wait = globalThis.setTimeout;
  globalThis.setTimeout = (callback, delay, ...rest) => wait(callback, delay === 500 ? 0 : delay, ...rest);
  try {
    return await work();
  } finally {
    globalThis.setTimeout = wait;
  }
}

const chainInfoOf = ({ creditcoin }) => new chainInfo.PrecompileChainInfoProvider(providerOf(creditcoin));
const proverOf = ({ creditcoin }) => new blockProver.PrecompileBlockProver(providerOf(creditcoin));

const calls = {
  leaf: ({ transaction, receipt }) => encoding.abiEncode(wrap(transaction), wrapReceipt(receipt)).abi,
  rootOfBlock: ({ transactions, receipts }) =>
    computeMerkleRootOfBlock(transactions.map(wrap), receipts.map(wrapReceipt), encoding.EncodingVersion.V1),
  tree: ({ leaves }) => {
    const tree = new KeccakMerkleTree(leaves);
    return { root: tree.getRoot(), proofs: leaves.map((_, index) => tree.generateProof(index).siblings) };
  },
  root: ({ leaves }) => (leaves.length === 0 ? ZERO_HASH : new KeccakMerkleTree(leaves).getRoot()),
  digest: ({ height, root, previous }) => computeDigestOf(height, root, previous ?? undefined),
  // What the package's users (and the precompile) recompute from a proof: the root of the siblings and the last digest.
  recompute: ({ txBytes, merkleProof, continuityProof, height }) => ({
    root: merkleProof.siblings.reduce(
      (hash, sibling) => (sibling.isLeft ? hashInner(sibling.hash, hash) : hashInner(hash, sibling.hash)),
      hashLeaf(txBytes),
    ),
    upperDigest: continuityProof.roots.reduce(
      (digest, root, offset) => computeDigestOf(height + offset, root, digest),
      continuityProof.lowerEndpointDigest,
    ),
  }),
  generateProof: ({ chainKey, url, txHash, timeoutMs }) =>
    new proofGenerator.api.ProverAPIProofGenerator(chainKey, url, timeoutMs ?? 5000).generateProof(txHash),
  generateRaw: ({ chainKey, source, creditcoin, txHash }) =>
    unhurried(() =>
      new proofGenerator.raw.RawProofGenerator(
        chainKey,
        new proofGenerator.raw.blockProvider.SimpleBlockProvider(providerOf(source)),
        chainInfoOf({ creditcoin }),
        encoding.EncodingVersion.V1,
      ).generateProof(txHash),
    ),
  supportedChains: (where) => chainInfoOf(where).getSupportedChains(),
  latestAttested: (where) => chainInfoOf(where).getLatestAttestedHeightAndHash(where.chainKey),
  attestationGenesis: (where) => chainInfoOf(where).getAttestationGenesisHeight(where.chainKey),
  continuityBounds: (where) => chainInfoOf(where).getContinuityBounds(where.chainKey, where.height),
  waitUntilAttested: (where) => chainInfoOf(where).waitUntilHeightAttested(where.chainKey, where.height, 200, 60000),
  verifySingle: ({ body, ...where }) =>
    proverOf(where).verifySingle(body.chainKey, body.headerNumber, body.txBytes, body.merkleProof, body.continuityProof),
  verifyBatch: ({ chainKey, heights, transactions, merkleProofs, continuityProof, ...where }) =>
    proverOf(where).verifyBatch(chainKey, heights, transactions, merkleProofs, continuityProof),
  roundTrip: ({ text }) => ({ text: JSON.stringify(JSON.parse(text)), unsafe: unsafeNumbers(text) }),
};

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line);
  let outcome;
  try {
    outcome = { id: request.id, answer: await calls[request.call](request.with) };
  } catch (error) {
    outcome = { id: request.id, error: String(error?.message ?? error) };
  }
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
}
process.exit(0);
