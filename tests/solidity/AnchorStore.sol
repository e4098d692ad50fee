// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.26;

import {IChainInfo} from "clients/solidity/IChainInfo.sol";

/// @notice Anchors that a test sets, read as the ChainInfo precompile is.
contract AnchorStore is IChainInfo {
    mapping(uint64 chainKey => mapping(bytes32 digest => HeightResult)) private _attestations;
    mapping(uint64 chainKey => mapping(uint64 height => HashResult)) private _checkpoints;

    function setAttestation(uint64 chainKey, uint64 height, bytes32 digest, bool exists) external {
        _attestations[chainKey][digest] = HeightResult(height, exists);
    }

    function setCheckpoint(uint64 chainKey, uint64 height, bytes32 digest, bool exists) external {
        _checkpoints[chainKey][height] = HashResult(digest, exists);
    }

    /// @inheritdoc IChainInfo
    function get_attestation_height_for_digest(uint64 chainKey, bytes32 digest)
        external
        view
        returns (HeightResult memory)
    {
        return _attestations[chainKey][digest];
    }

    /// @inheritdoc IChainInfo
    function get_checkpoint_for_height(uint64 chainKey, uint64 height) external view returns (HashResult memory) {
        return _checkpoints[chainKey][height];
    }
}
