// What a program in TypeScript does with a client made from the OpenAPI document: `api.ts`, beside this file when it is compiled.
// It prints what it was answered. A line below `@ts-expect-error` must not compile.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Schemas = components["schemas"];
declare const process: { readonly argv: readonly string[] };

interface Question {
  baseUrl: string;
  chain: string;
  chainKey: string;
  txHash: string;
  height: number;
  txIndex: number;
  logIndex: number;
  anchor: Schemas["Anchor"];
}

const question = JSON.parse(process.argv[2] ?? "") as Question;
const { chain, chainKey, txHash, height, txIndex, logIndex, anchor } = question;
const client = createClient<paths>({ baseUrl: question.baseUrl });

function had<T>(answer: { data?: T; error?: { code: string } }): T {
  if (answer.data === undefined) throw new Error(`refused: ${answer.error?.code}`);
  return answer.data;
}

async function verdict(body: paths["/api/v1/proofs/verify"]["post"]["requestBody"]["content"]["application/json"]) {
  const told: Schemas["Verdict"] = had(await client.POST("/api/v1/proofs/verify", { body }));
  const reason: Schemas["Verdict"]["reason"] = told.reason;
  const node: number | null = told.node;
  return { valid: told.valid, reason, node };
}

const byHash = { params: { path: { chain, tx_hash: txHash } } };
const transaction = had(await client.GET("/api/v1/proofs/{chain}/transactions/{tx_hash}", byHash));
const receipt = had(await client.GET("/api/v1/proofs/{chain}/receipts/{tx_hash}", byHash));
const log = had(
  await client.GET("/api/v1/proofs/{chain}/logs/{tx_hash}/{log_index}", {
    params: { path: { ...byHash.params.path, log_index: logIndex }, query: { index: "receipt", finality: "finalized" } },
  }),
);
const chainId: string = receipt.chainId;
const blockNumber: number = receipt.blockNumber;
const level: "latest" | "safe" | "finalized" = receipt.finality.level;
const topics: string[] = log.log?.topics ?? [];
// @ts-expect-error a chain id is no number
const notANumber: number = receipt.chainId;

const usc = had(
  await client.GET("/api/v1/proof/{chain_key}/{header_number}/{tx_index}", {
    params: { path: { chain_key: chainKey, header_number: height, tx_index: txIndex } },
  }),
);
const positions = [{ headerNumber: height, txIndexes: [txIndex] }, { headerNumber: height + 1 }];
const key = { path: { chain_key: chainKey } };
const whole = had(await client.POST("/api/v1/proof-batch/{chain_key}", { params: key, body: positions }));
const parts = had(
  await client.POST("/api/v1/proof-batch-by-tx/{chain_key}", { params: { ...key, query: { split: 10 } }, body: [txHash] }),
);
if ("batches" in whole || !("batches" in parts)) throw new Error("the alternatives of a batch are not those asked for");
const proven: string | undefined = whole.merkleProofs[height]?.[txIndex]?.txHash;
const pieces: Schemas["UscBatch"][] = parts.batches;

const missing = await client.GET("/api/v1/proofs/{chain}/receipts/{tx_hash}", {
  params: { path: { chain, tx_hash: "0x" + "00".repeat(32) } },
});
const foreign = await client.GET("/api/v1/proof-by-tx/{chain_key}/{tx_hash}", {
  params: { path: { chain_key: "99", tx_hash: txHash } },
});
if (missing.error === undefined || foreign.error === undefined) throw new Error("an error was no error");
const notFound: Schemas["TransactionNotFoundProblem"]["code"] = "TxHashNotFound";
// @ts-expect-error no code of any status of this route
const impossible: boolean = missing.error.code === "BatchSpanTooLarge";
const retriable: boolean = foreign.error.retriable;

const chains = had(await client.GET("/api/v1/chains"));
const finalized: number | null = chains.chains[0]?.finalized ?? null;

console.log(
  JSON.stringify({
    chainId,
    blockNumber,
    level,
    topics: topics.length,
    proven,
    pieces: pieces.length,
    finalized,
    chains: chains.chains.map((each) => each.name),
    errors: [
      [missing.response.status, missing.error.code === notFound, missing.error.instance.startsWith("urn:copath:request:")],
      [foreign.response.status, foreign.error.code, retriable],
    ],
    verdicts: {
      transaction: await verdict(transaction),
      receipt: await verdict(receipt),
      log: await verdict({ proof: log }),
      usc: await verdict({ ...usc, anchor }),
      uscAsItIs: await verdict(usc),
      batch: await verdict({ proof: whole, anchor }),
      split: await verdict({ ...parts, anchor }),
      absent: await verdict({ kind: "trie", root: transaction.root, key: "0x10", value: null, nodes: transaction.nodes.slice(0, 1) }),
    },
  }),
);
