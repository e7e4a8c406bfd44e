#pragma once

#include <cstdint>
#include <vector>

#include "base/function_ref.hpp"
#include "plan/exchange.hpp"

namespace muonrt {

/// Fills a chunk that the caller's gather and redistribute functions transfer. Every rank takes
/// part. The buffers have the transport dtype: a holder's has its shards, each once; an owner's
/// has its matrices of a parameter in the order of the stack, which is the whole tensor if it owns
/// all of them. Both are row-major.
void add_callback_chunk(const ExchangeContext& context, int rank, const ChunkSpec& of,
                        RankChunk& chunk);

/// Calls `use` for each parameter of such a chunk and each of its owners, ascending.
/// @param ids  the matrices of the parameter that the rank owns, ascending.
void for_each_callback_owner(
    const Plan& plan, const ChunkSpec& chunk,
    FunctionRef<void(int32_t param, int32_t owner, const std::vector<int32_t>& ids)> use);

/// Return the bytes of a parameter's shard in the holder's buffer on `rank`, and of matrices of one
/// parameter in the owner's buffer: multiples of kMessageAlignment.
int64_t callback_local_bytes(const Plan& plan, int32_t param, int rank);
int64_t callback_owner_bytes(const Plan& plan, const std::vector<int32_t>& ids);

}  // namespace muonrt
