// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.26;

/// @notice What Creditcoin's block prover precompile at 0x0000000000000000000000000000000000000FD2 offers: the ABI of its SDK.
interface IUscVerifier {
    struct MerkleProofEntry {
        bytes32 hash;
        bool isLeft;
    }

    /// @dev `siblings` leaf level first; `isLeft` says on which side of the path the sibling stands.
    struct MerkleProof {
        bytes32 root;
        MerkleProofEntry[] siblings;
    }

    /// @dev `roots` of consecutive heights, the last of them an anchor's; `lowerEndpointDigest` is the digest below the first.
    struct ContinuityProof {
        bytes32 lowerEndpointDigest;
        bytes32[] roots;
    }

    event TransactionVerified(uint64 indexed chainKey, uint64 indexed height, uint64 transactionIndex);

    /// @notice That `encodedTransaction` is a leaf of the block at `height`, which an anchor of the chain commits to.
    /// `roots[0]` is the root of that block. @return true; whatever does not hold reverts
    function verify(
        uint64 chainKey,
        uint64 height,
        bytes calldata encodedTransaction,
        MerkleProof calldata merkleProof,
        ContinuityProof calldata continuityProof
    ) external view returns (bool);

    /// @notice The same of up to 10 transactions under one continuity proof, which begins at the lowest of their heights.
    function verify(
        uint64 chainKey,
        uint64[] calldata heights,
        bytes[] calldata encodedTransactions,
        MerkleProof[] calldata merkleProofs,
        ContinuityProof calldata sharedContinuityProof
    ) external view returns (bool);

    /// @notice As `verify`, and an event.
    function verifyAndEmit(
        uint64 chainKey,
        uint64 height,
        bytes calldata encodedTransaction,
        MerkleProof calldata merkleProof,
        ContinuityProof calldata continuityProof
    ) external returns (bool);

    /// @notice As `verify`, and an event for each transaction.
    function verifyAndEmit(
        uint64 chainKey,
        uint64[] calldata heights,
        bytes[] calldata encodedTransactions,
        MerkleProof[] calldata merkleProofs,
        ContinuityProof calldata sharedContinuityProof
    ) external returns (bool);

    /// @return the index in its block of the transaction that the siblings lead to
    function calculateTxIndex(MerkleProof calldata merkleProof) external view returns (uint64);
}
