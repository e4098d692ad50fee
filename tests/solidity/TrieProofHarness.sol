// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.26;

import {TrieProof} from "@openzeppelin/contracts/utils/cryptography/TrieProof.sol";

/// @notice OpenZeppelin's trie verifier behind an external function, so that a test can call it.
contract TrieProofHarness {
    /// @return accepted whether `nodes` prove that the trie of `root` holds `value` under `key`
    function verify(
        bytes32 root,
        bytes calldata key,
        bytes calldata value,
        bytes[] calldata nodes
    ) external pure returns (bool accepted) {
        return TrieProof.verify(value, root, key, nodes);
    }

    /// @return value what `nodes` prove under `key`; reverts with the library's named error otherwise
    function traverse(
        bytes32 root,
        bytes calldata key,
        bytes[] calldata nodes
    ) external pure returns (bytes memory value) {
        return TrieProof.traverse(root, key, nodes);
    }
}
