// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.26;

/// @notice The anchors that Creditcoin's ChainInfo precompile knows, as far as a verifier asks for them.
/// On Creditcoin it stands at 0x0000000000000000000000000000000000000fD3. What its ABI calls a hash is the digest of a height.
interface IChainInfo {
    struct HeightResult {
        uint64 height;
        bool exists;
    }

    struct HashResult {
        bytes32 hash;
        bool exists;
    }

    /// @return the height of the attestation that has this digest
    function get_attestation_height_for_digest(uint64 chainKey, bytes32 digest)
        external
        view
        returns (HeightResult memory);

    /// @return the digest of the checkpoint at this height
    function get_checkpoint_for_height(uint64 chainKey, uint64 height) external view returns (HashResult memory);
}
