// Tests messages from a rank to itself. The rank packs them directly into its receive buffers.

#include "pipeline/own_messages.hpp"

#include <catch2/catch.hpp>

#include "plan/buffers.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"

using namespace muonrt;

namespace {

ShardBlock block_at(int64_t packed_offset) {
  ShardBlock out{};
  out.rows = out.cols = 1;
  out.packed_offset = packed_offset;
  return out;
}

/// Returns the chunk of rank 1 of three ranks. Its message to itself has 100 bytes, and occupies
/// 128 bytes in the buffer.
RankChunk chunk_of_rank_1() {
  RankChunk chunk;
  chunk.gather_sends = {{0, 0, 10}, {1, 64, 100}, {2, 192, 6}};
  chunk.gather_receives = {{0, 0, 70}, {1, 128, 100}};
  chunk.gather_send_bytes = chunk.gather_receive_bytes = 256;
  for (const int64_t offset : {0, 32, 81, 96}) chunk.gather_blocks.push_back(block_at(offset));
  // Replica 2 receives the same bytes as the rank itself.
  chunk.return_sends = {{0, 0, 70}, {1, 128, 100}, {2, 128, 100}, {3, 256, 4}};
  chunk.return_receives = {{0, 0, 10}, {1, 64, 100}};
  chunk.return_send_bytes = 320;
  chunk.return_receive_bytes = 192;
  for (const int64_t offset : {0, 64, 113, 128})
    chunk.return_matrix_blocks.push_back({0, 1, 1, 0, 0, offset});
  return chunk;
}

template <class Block>
std::vector<int64_t> offsets(const std::vector<Block>& blocks) {
  std::vector<int64_t> out;
  for (const Block& b : blocks) out.push_back(b.packed_offset);
  return out;
}

std::vector<std::pair<int32_t, int64_t>> places(const std::vector<Region>& regions) {
  std::vector<std::pair<int32_t, int64_t>> out;
  for (const Region& r : regions) out.emplace_back(r.peer, r.offset);
  return out;
}

using Places = std::vector<std::pair<int32_t, int64_t>>;

}  // namespace

TEST_CASE("own messages: blocks are packed into the receive buffers, and the others close the gap",
          "[unit][pipeline]") {
  RankChunk chunk = chunk_of_rank_1();
  const ChunkBytes bytes = bytes_of(chunk, 1);
  CHECK(bytes[kGatherSend] == 256 - 128);
  CHECK(bytes[kGatherReceive] == 256);
  CHECK(bytes[kReturnSend] == 320 - 128);
  CHECK(bytes[kReturnReceive] == 192);
  const char memory[4096] = {};
  keep_own_messages_in_place(chunk, 1, {memory, memory + 1024}, {memory + 2048, memory});
  // bf16 elements have two bytes. The rank's message to itself moves from offset 64 of the gather's
  // send buffer to offset 128 of the receive buffer.
  CHECK(places(chunk.gather_sends) == Places{{0, 0}, {2, 64}});
  CHECK(places(chunk.gather_receives) == Places{{0, 0}});
  CHECK(offsets(chunk.gather_blocks) ==
        std::vector<int64_t>{0, (1024 + 128) / 2, (1024 + 128) / 2 + 49, 64 / 2});
  // In the return, the message moves from offset 128 of the send buffer to offset 64 of the receive
  // buffer. From there it is also sent to replica 2.
  CHECK(places(chunk.return_sends) == Places{{0, 0}, {2, -2048 + 64}, {3, 128}});
  CHECK(places(chunk.return_receives) == Places{{0, 0}});
  CHECK(offsets(chunk.return_matrix_blocks) ==
        std::vector<int64_t>{0, (-2048 + 64) / 2, (-2048 + 64) / 2 + 49, 128 / 2});
}

TEST_CASE("own messages: a chunk without them is unchanged", "[unit][pipeline]") {
  RankChunk chunk = chunk_of_rank_1();
  const char memory[4096] = {};
  keep_own_messages_in_place(chunk, 7, {memory, memory + 1024}, {memory + 2048, memory});
  const RankChunk before = chunk_of_rank_1();
  CHECK(places(chunk.gather_sends) == places(before.gather_sends));
  CHECK(places(chunk.return_sends) == places(before.return_sends));
  CHECK(offsets(chunk.gather_blocks) == offsets(before.gather_blocks));
  CHECK(offsets(chunk.return_matrix_blocks) == offsets(before.return_matrix_blocks));
}

TEST_CASE("own messages: a single rank exchanges nothing and has one buffer in each direction",
          "[unit][pipeline]") {
  world::Case c = world::on_mesh({1});
  c.params.push_back(world::matrix("a", {24, 40}, {}));
  c.params.push_back(world::matrix("b", {40, 24}, {}));
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    c.settings.commit = commit;
    c.settings.chunk_bytes = 2 * 24 * 40;  // one matrix in bf16
    world::on_ranks(1, [&](Comm& comm) {
      world::Rank rank(c, comm);
      const MemoryPlan memory = rank.optimizer().planned_memory().full;
      const int64_t chunks = rank.optimizer().plan().chunks().size() == 2 ? 2 : -1;
      const int64_t bytes = 2 * 24 * 40;  // one chunk is in flight
      const bool atomic = commit == CommitMode::kAtomic;
      CHECK(memory.message_bytes == bytes * (atomic ? 1 : 2));
      CHECK(memory.staged_bytes == (atomic ? chunks * bytes : 0));
      StepReport report;
      CHECK(rank.step(0, report) == Status::kOk);
      CHECK(report.orthogonalized == 2);
      CHECK(rank.optimizer().comm().exchanges() == 0);
    });
  }
}
