// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.26;

import {IChainInfo} from "./IChainInfo.sol";
import {IUscVerifier} from "./IUscVerifier.sol";

/// @notice A usc verifier in Solidity: for development chains that have no precompile, and for chains that keep anchors of their
/// own. It accepts what Creditcoin's precompile accepts, and refuses in its words.
///
///     leaf   = keccak256(0x00 || encodedTransaction)      inner = keccak256(0x01 || left || right)
///     digest = keccak256(height, 8 bytes || root of the height || digest of the height below)
///
/// The digest of the last height must be that of an attestation or a checkpoint at that height.
contract UscVerifier is IUscVerifier {
    uint256 public constant MAX_BATCH = 10;
    uint256 public constant MAX_ROOTS = 50_000;
    uint256 public constant MAX_SIBLINGS = 64;
    uint256 public constant MAX_TRANSACTION_BYTES = 10 * 1024 * 1024;

    /// @notice Where anchors are looked up. A chain that keeps its own overrides it.
    function chainInfo() public view virtual returns (IChainInfo) {
        return IChainInfo(0x0000000000000000000000000000000000000fD3);
    }

    /// @inheritdoc IUscVerifier
    function verify(
        uint64 chainKey,
        uint64 height,
        bytes calldata encodedTransaction,
        MerkleProof calldata merkleProof,
        ContinuityProof calldata continuityProof
    ) public view returns (bool) {
        uint64 upper = _upperHeight(height, continuityProof.roots.length);
        _requireIncluded(height, height, upper, encodedTransaction, merkleProof, continuityProof.roots);
        _requireAnchored(chainKey, height, upper, continuityProof);
        return true;
    }

    /// @inheritdoc IUscVerifier
    function verify(
        uint64 chainKey,
        uint64[] calldata heights,
        bytes[] calldata encodedTransactions,
        MerkleProof[] calldata merkleProofs,
        ContinuityProof calldata sharedContinuityProof
    ) public view returns (bool) {
        uint256 count = heights.length;
        require(
            count == encodedTransactions.length && count == merkleProofs.length,
            "Should have the same number of heights, encoded transactions, and merkle proofs"
        );
        require(count > 0, "Should have at least one height");
        require(count <= MAX_BATCH, "Batch exceeds maximum allowed size");
        uint64 first = heights[0];
        uint64 last = heights[0];
        for (uint256 i = 1; i < count; ++i) {
            if (heights[i] < first) first = heights[i];
            if (heights[i] > last) last = heights[i];
        }
        uint64 upper = _upperHeight(first, sharedContinuityProof.roots.length);
        require(last <= upper, "Continuity chain doesn't cover maximum query height");
        for (uint256 i = 0; i < count; ++i) {
            _requireIncluded(
                heights[i], first, upper, encodedTransactions[i], merkleProofs[i], sharedContinuityProof.roots
            );
        }
        _requireAnchored(chainKey, first, upper, sharedContinuityProof);
        return true;
    }

    /// @inheritdoc IUscVerifier
    function verifyAndEmit(
        uint64 chainKey,
        uint64 height,
        bytes calldata encodedTransaction,
        MerkleProof calldata merkleProof,
        ContinuityProof calldata continuityProof
    ) external returns (bool) {
        verify(chainKey, height, encodedTransaction, merkleProof, continuityProof);
        emit TransactionVerified(chainKey, height, calculateTxIndex(merkleProof));
        return true;
    }

    /// @inheritdoc IUscVerifier
    function verifyAndEmit(
        uint64 chainKey,
        uint64[] calldata heights,
        bytes[] calldata encodedTransactions,
        MerkleProof[] calldata merkleProofs,
        ContinuityProof calldata sharedContinuityProof
    ) external returns (bool) {
        verify(chainKey, heights, encodedTransactions, merkleProofs, sharedContinuityProof);
        for (uint256 i = 0; i < heights.length; ++i) {
            emit TransactionVerified(chainKey, heights[i], calculateTxIndex(merkleProofs[i]));
        }
        return true;
    }

    /// @inheritdoc IUscVerifier
    function calculateTxIndex(MerkleProof calldata merkleProof) public pure returns (uint64 index) {
        MerkleProofEntry[] calldata siblings = merkleProof.siblings;
        require(siblings.length <= MAX_SIBLINGS, "Merkle proof exceeds maximum allowed siblings");
        for (uint256 level = 0; level < siblings.length; ++level) {
            if (siblings[level].isLeft) index |= uint64(1) << uint64(level);
        }
    }

    /// @dev The height of the last root.
    function _upperHeight(uint64 first, uint256 roots) private pure returns (uint64) {
        require(roots > 0, "Continuity chain cannot be empty");
        require(roots <= MAX_ROOTS, "Continuity chain exceeds maximum allowed roots");
        require(roots - 1 <= type(uint64).max - first, "Continuity chain range overflow");
        return first + uint64(roots - 1);
    }

    function _requireIncluded(
        uint64 height,
        uint64 first,
        uint64 upper,
        bytes calldata encodedTransaction,
        MerkleProof calldata merkleProof,
        bytes32[] calldata roots
    ) private pure {
        require(encodedTransaction.length > 0, "Transaction data cannot be empty");
        require(encodedTransaction.length <= MAX_TRANSACTION_BYTES, "Transaction data exceeds maximum allowed size");
        require(_rootOf(encodedTransaction, merkleProof.siblings) == merkleProof.root, "Merkle proof validation failed");
        require(first <= height && height <= upper, "Query block not found in continuity chain");
        require(roots[height - first] == merkleProof.root, "Merkle root mismatch");
    }

    function _rootOf(bytes calldata leaf, MerkleProofEntry[] calldata siblings) private pure returns (bytes32 node) {
        require(siblings.length <= MAX_SIBLINGS, "Merkle proof exceeds maximum allowed siblings");
        node = keccak256(abi.encodePacked(bytes1(0x00), leaf));
        for (uint256 level = 0; level < siblings.length; ++level) {
            MerkleProofEntry calldata sibling = siblings[level];
            node = sibling.isLeft
                ? keccak256(abi.encodePacked(bytes1(0x01), sibling.hash, node))
                : keccak256(abi.encodePacked(bytes1(0x01), node, sibling.hash));
        }
    }

    function _requireAnchored(uint64 chainKey, uint64 first, uint64 upper, ContinuityProof calldata proof) private view {
        bytes32 digest = proof.lowerEndpointDigest;
        bytes32[] calldata roots = proof.roots;
        for (uint256 i = 0; i < roots.length; ++i) {
            digest = keccak256(abi.encodePacked(first + uint64(i), roots[i], digest));
        }
        IChainInfo anchors = chainInfo();
        IChainInfo.HeightResult memory attestation = anchors.get_attestation_height_for_digest(chainKey, digest);
        if (attestation.exists && attestation.height == upper) return;
        IChainInfo.HashResult memory checkpoint = anchors.get_checkpoint_for_height(chainKey, upper);
        require(
            checkpoint.exists && checkpoint.hash == digest,
            "Continuity proof does not match attestation or checkpoint"
        );
    }
}
