#pragma once

#include <cstdint>
#include <vector>

#include "base/function_ref.hpp"
#include "plan/exchange.hpp"

namespace muonrt {

/// Fills a chunk whose matrices the caller's gather and redistribute functions transfer. Every rank
/// takes part in such a chunk. All buffers have the transport dtype and are row-major. A holder's
/// buffer contains each of its shards once. An owner's buffer contains the owner's matrices of a
/// parameter, in the order of the stack; if it owns all matrices of the parameter, the buffer
/// contains the whole tensor.
void add_callback_chunk(const ExchangeContext& context, int rank, const ChunkSpec& of,
                        RankChunk& chunk);

/// Calls `use` for each parameter of a chunk of this kind and for each owner of its matrices,
/// ordered by parameter, then by owner.
/// @param ids  the matrices of the parameter that this owner owns, ascending.
void for_each_callback_owner(
    const Plan& plan, const ChunkSpec& chunk,
    FunctionRef<void(int32_t param, int32_t owner, const std::vector<int32_t>& ids)> use);

/// callback_local_bytes() returns the bytes of the rank's shard of a parameter in a holder's
/// buffer. callback_owner_bytes() returns the bytes of matrices of one parameter in the owner's
/// buffer. Both results are rounded up to kMessageAlignment.
int64_t callback_local_bytes(const Plan& plan, int32_t param, int rank);
int64_t callback_owner_bytes(const Plan& plan, const std::vector<int32_t>& ids);

}  // namespace muonrt
