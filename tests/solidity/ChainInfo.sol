// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.26;

import {IChainInfo} from "clients/solidity/IChainInfo.sol";

/// @notice Creditcoin's ChainInfo, played for tests: whoever calls it attests. It is read as the precompile is, and answers as
/// the precompile does: a key that is not supported reverts, and the newest checkpoint itself is not looked for among the ends
/// above a height.
contract ChainInfo is IChainInfo {
    struct Supported {
        uint64 chainKey;
        uint64 chainId;
        bytes chainName;
        uint8 chainEncoding;
    }

    struct ChainInfoResult {
        Supported info;
        bool exists;
    }

    struct HeightHashResult {
        uint64 height;
        bytes32 hash;
        bool isAttestation;
        bool exists;
    }

    struct BoundsCheckResult {
        uint64 parentHeight;
        bytes32 parentHash;
        bool parentIsAttestation;
        uint64 childHeight;
        bytes32 childHash;
        bool childIsAttestation;
        bool isAttested;
    }

    struct Attested {
        uint64 genesis;
        uint64[] attestations; // ascending
        uint64[] checkpoints; // ascending
        mapping(uint64 height => bytes32) digests;
    }

    uint64[] private _keys;
    mapping(uint64 chainKey => Supported) private _supported;
    mapping(uint64 chainKey => Attested) private _attested;

    modifier supported(uint64 chainKey) {
        require(_supported[chainKey].chainKey == chainKey && _keys.length > 0, "chain not supported");
        _;
    }

    // --- what a test does ---

    function support(uint64 chainKey, uint64 chainId, uint8 encoding, uint64 genesis) external {
        if (_supported[chainKey].chainId == 0) _keys.push(chainKey);
        _supported[chainKey] = Supported(chainKey, chainId, "source", encoding);
        _attested[chainKey].genesis = genesis;
    }

    /// @notice Attests these heights, which ascend and are above all others.
    function attest(uint64 chainKey, uint64[] calldata heights, bytes32[] calldata digests) external {
        Attested storage chain = _attested[chainKey];
        for (uint256 at = 0; at < heights.length; at++) {
            chain.attestations.push(heights[at]);
            chain.digests[heights[at]] = digests[at];
        }
    }

    /// @notice Makes the attestation at this height a checkpoint: those below it are gone.
    function checkpoint(uint64 chainKey, uint64 height) external {
        Attested storage chain = _attested[chainKey];
        chain.checkpoints.push(height);
        uint64[] memory before = chain.attestations;
        delete chain.attestations;
        for (uint256 at = 0; at < before.length; at++) {
            if (before[at] > height) chain.attestations.push(before[at]);
        }
    }

    /// @notice Nothing above this height is attested any more.
    function revertTo(uint64 chainKey, uint64 height) external {
        _drop(_attested[chainKey].attestations, height);
        _drop(_attested[chainKey].checkpoints, height);
    }

    function _drop(uint64[] storage heights, uint64 above) private {
        while (heights.length > 0 && heights[heights.length - 1] > above) heights.pop();
    }

    // --- what the precompile tells ---

    function get_supported_chains() external view returns (Supported[] memory chains) {
        chains = new Supported[](_keys.length);
        for (uint256 at = 0; at < _keys.length; at++) chains[at] = _supported[_keys[at]];
    }

    function get_chain_by_key(uint64 chainKey) external view returns (ChainInfoResult memory result) {
        Supported memory info = _supported[chainKey];
        return ChainInfoResult(info, info.chainId != 0);
    }

    function get_attestation_genesis_height(uint64 chainKey) external view supported(chainKey) returns (uint64) {
        return _attested[chainKey].genesis;
    }

    function get_latest_attestation_height_and_hash(uint64 chainKey)
        external
        view
        supported(chainKey)
        returns (HeightHashResult memory)
    {
        Attested storage chain = _attested[chainKey];
        HeightHashResult memory newest = _below(chain, chain.attestations, true, type(uint64).max);
        return newest.exists ? newest : _below(chain, chain.checkpoints, false, type(uint64).max);
    }

    function get_latest_checkpoint_height_and_hash(uint64 chainKey)
        external
        view
        supported(chainKey)
        returns (HeightHashResult memory)
    {
        Attested storage chain = _attested[chainKey];
        return _below(chain, chain.checkpoints, false, type(uint64).max);
    }

    function find_highest_attested_before(uint64 chainKey, uint64 targetHeight)
        public
        view
        supported(chainKey)
        returns (HeightHashResult memory result)
    {
        Attested storage chain = _attested[chainKey];
        HeightHashResult memory last = _below(chain, chain.checkpoints, false, type(uint64).max);
        if (last.exists && last.height >= targetHeight) return _below(chain, chain.checkpoints, false, targetHeight);
        result = _below(chain, chain.attestations, true, targetHeight);
        return result.exists ? result : last;
    }

    function find_lowest_attested_after(uint64 chainKey, uint64 targetHeight)
        public
        view
        supported(chainKey)
        returns (HeightHashResult memory)
    {
        Attested storage chain = _attested[chainKey];
        HeightHashResult memory last = _below(chain, chain.checkpoints, false, type(uint64).max);
        bool among = last.exists && last.height > targetHeight;
        return _atOrAbove(chain, among ? chain.checkpoints : chain.attestations, !among, targetHeight);
    }

    function is_height_attested(uint64 chainKey, uint64 targetHeight) external view returns (bool) {
        return get_attestation_bounds(chainKey, targetHeight).isAttested;
    }

    function get_attestation_bounds(uint64 chainKey, uint64 targetHeight)
        public
        view
        returns (BoundsCheckResult memory)
    {
        HeightHashResult memory parent = find_highest_attested_before(chainKey, targetHeight);
        HeightHashResult memory child = find_lowest_attested_after(chainKey, targetHeight);
        return BoundsCheckResult(
            parent.height,
            parent.hash,
            parent.isAttestation,
            child.height,
            child.hash,
            child.isAttestation,
            parent.exists && child.exists
        );
    }

    /// @inheritdoc IChainInfo
    function get_attestation_height_for_digest(uint64 chainKey, bytes32 digest)
        external
        view
        supported(chainKey)
        returns (HeightResult memory)
    {
        Attested storage chain = _attested[chainKey];
        for (uint256 at = 0; at < chain.attestations.length; at++) {
            uint64 height = chain.attestations[at];
            if (chain.digests[height] == digest) return HeightResult(height, true);
        }
        return HeightResult(0, false);
    }

    /// @inheritdoc IChainInfo
    function get_checkpoint_for_height(uint64 chainKey, uint64 height)
        external
        view
        supported(chainKey)
        returns (HashResult memory)
    {
        Attested storage chain = _attested[chainKey];
        for (uint256 at = 0; at < chain.checkpoints.length; at++) {
            if (chain.checkpoints[at] == height) return HashResult(chain.digests[height], true);
        }
        return HashResult(0, false);
    }

    function _below(Attested storage chain, uint64[] storage heights, bool attestations, uint64 height)
        private
        view
        returns (HeightHashResult memory)
    {
        for (uint256 at = heights.length; at > 0; at--) {
            uint64 found = heights[at - 1];
            if (found < height) return HeightHashResult(found, chain.digests[found], attestations, true);
        }
        return HeightHashResult(0, 0, false, false);
    }

    function _atOrAbove(Attested storage chain, uint64[] storage heights, bool attestations, uint64 height)
        private
        view
        returns (HeightHashResult memory)
    {
        for (uint256 at = 0; at < heights.length; at++) {
            uint64 found = heights[at];
            if (found >= height) return HeightHashResult(found, chain.digests[found], attestations, true);
        }
        return HeightHashResult(0, 0, false, false);
    }
}
