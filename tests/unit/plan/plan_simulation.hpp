#pragma once

// Moves elements through the block lists of a plan, rank by rank, and reports the first error. The
// value of an element encodes its parameter and index, so the simulation can check every copy.

#include <stdexcept>
#include <tuple>

#include "base/text.hpp"
#include "unit/plan/plan_cases.hpp"

namespace plan_simulation {

using muonrt::cat;
using muonrt::MatrixBlock;
using muonrt::Plan;
using muonrt::RankChunk;
using muonrt::Region;
using muonrt::ShardBlock;

template <class... Parts>
void expect(bool ok, const Parts&... parts) {
  if (!ok) throw std::runtime_error(cat(parts...));
}

/// Checks that regions are sorted by peer, start at multiples of 64, and end inside the buffer.
inline void check_regions(const std::vector<Region>& regions, int64_t bytes, bool may_share,
                          const char* what) {
  expect(bytes % 64 == 0, what, ": buffer of ", bytes, " bytes");
  std::map<int64_t, int64_t> taken;
  int32_t before = -1;
  for (const Region& r : regions) {
    expect(r.peer > before, what, ": peers do not ascend");
    before = r.peer;
    expect(r.offset % 64 == 0, what, ": offset ", r.offset);
    expect(r.bytes > 0 && r.offset + r.bytes <= bytes, what, ": region out of bounds");
    const auto [at, is_new] = taken.try_emplace(r.offset, r.bytes);
    expect(is_new || (may_share && at->second == r.bytes), what, ": regions overlap");
  }
  int64_t end = 0;
  for (const auto& [offset, size] : taken) {
    expect(offset >= end, what, ": regions overlap");
    end = offset + size;
  }
}

inline void check_shape(const RankChunk& s) {
  expect(s.takes_part(), "a chunk without a message");
  check_regions(s.gather_sends, s.gather_send_bytes, false, "gather sends");
  check_regions(s.gather_receives, s.gather_receive_bytes, false, "gather receives");
  check_regions(s.return_sends, s.return_send_bytes, true, "return sends");
  check_regions(s.return_receives, s.return_receive_bytes, false, "return receives");
  check_regions(s.relay_sends, s.return_receive_bytes, true, "relay sends");
  check_regions(s.relay_receives, s.return_receive_bytes, false, "relay receives");
  for (const Region& relayed : s.relay_receives) {
    for (const auto* list : {&s.return_receives, &s.relay_sends}) {
      for (const Region& r : *list)
        expect(relayed.offset >= r.offset + r.bytes || r.offset >= relayed.offset + relayed.bytes,
               "a relayed message overlaps what owners send");
    }
  }
  if (s.kind != muonrt::ChunkKind::kDirections) return;
  expect(s.return_matrix_blocks.size() >= s.gather_matrix_blocks.size(),
         "the return list is too short");
  for (size_t i = 0; i < s.gather_matrix_blocks.size(); ++i) {
    const auto facts = [](const MatrixBlock& p) {
      return std::tuple(p.matrix, p.row, p.col, p.rows, p.cols, p.packed_offset);
    };
    expect(facts(s.gather_matrix_blocks[i]) == facts(s.return_matrix_blocks[i]),
           "the return does not begin as the gather");
  }
}

class Simulation {
 public:
  Simulation(const Plan& plan, std::vector<std::vector<RankChunk>> chunks)
      : plan_(plan), chunks_(std::move(chunks)) {
    for (const muonrt::ParamSpec& spec : plan.problem().params) {
      held_.push_back(naive::held(spec.layout));
      grads_.push_back(naive::held(grad_layout(spec)));
    }
  }

  /// Runs a step, and checks that every rank receives every element of its shards exactly once.
  void run() {
    for (const auto& own : chunks_) {
      for (size_t i = 1; i < own.size(); ++i)
        expect(own[i - 1].index < own[i].index, "chunks do not ascend");
    }
    for (int32_t s = 0; s < static_cast<int32_t>(plan_.chunks().size()); ++s) {
      current_.clear();
      for (size_t r = 0; r < chunks_.size(); ++r) {
        for (const RankChunk& chunk : chunks_[r])
          if (chunk.index == s) current_[static_cast<int>(r)] = &chunk;
      }
      for (const auto& [rank, chunk] : current_) check_shape(*chunk);
      gather();
      return_updates();
    }
    for (size_t p = 0; p < held_.size(); ++p) {
      if (plan_.problem().params[p].role != muonrt::Role::kMuon) continue;
      for (const auto& [rank, held] : held_[p]) {
        for (const int64_t e : held) {
          const int times = returned_[{rank, id(static_cast<int>(p), e)}];
          expect(times == 1, "rank ", rank, ", param ", p, ": element ", e, " came back ", times,
                 " times");
        }
      }
    }
  }

 private:
  using Buffers = std::map<int, std::vector<int64_t>>;  // element ids by rank; -1 means no element
  using Regions = std::vector<Region> RankChunk::*;
  using Element = muonrt::DType RankChunk::*;

  static int64_t id(int param, int64_t number) { return int64_t{param} << 40 | number; }
  const muonrt::Matrix& matrix(int32_t index) const {
    return plan_.matrices()[static_cast<size_t>(index)];
  }
  Buffers buffers(int64_t RankChunk::*bytes, Element element) const {
    Buffers out;
    for (const auto& [rank, chunk] : current_)
      out[rank].assign(static_cast<size_t>(chunk->*bytes / size_of(chunk->*element)), -1);
    return out;
  }

  /// Moves messages, and checks that sender and receiver agree on the number of bytes.
  void move(const Buffers& sent, Buffers& received, Element element, Regions sends,
            Regions receives) const {
    std::map<std::pair<int, int>, Region> expected;  // (from, to)
    for (const auto& [rank, chunk] : current_)
      for (const Region& region : chunk->*receives) expected[{region.peer, rank}] = region;
    for (const auto& [rank, chunk] : current_) {
      const int64_t size = size_of(chunk->*element);
      for (const Region& from : chunk->*sends) {
        const auto to = expected.find({rank, from.peer});
        expect(to != expected.end(), "rank ", from.peer, " does not expect rank ", rank);
        expect(to->second.bytes == from.bytes, "rank ", rank, " sends ", from.bytes,
               " bytes, rank ", from.peer, " expects ", to->second.bytes);
        const auto begin = sent.at(rank).begin() + from.offset / size;
        std::copy(begin, begin + from.bytes / size,
                  received.at(from.peer).begin() + to->second.offset / size);
        expected.erase(to);
      }
    }
    expect(expected.empty(), "a message is expected that no rank sends");
  }

  /// Calls use(id, packed offset) for each element of a block, and checks that the shard contains
  /// it.
  template <class Use>
  void for_each(const std::vector<naive::Held>& tensors, int rank, const ShardBlock& p,
                const Use& use) const {
    const muonrt::Matrix& m = matrix(p.matrix);
    const naive::List& held = tensors[static_cast<size_t>(p.param)].at(rank);
    for (int64_t i = 0; i < p.rows; ++i) {
      for (int64_t j = 0; j < p.cols; ++j) {
        const int64_t local = p.local_offset + i * p.local_ld + j;
        expect(local >= 0 && local < std::ssize(held), "rank ", rank, " leaves its shard");
        const int64_t found = held[static_cast<size_t>(local)],
                      number = (m.index * m.rows + p.global_row + i) * m.cols + p.global_col + j;
        expect(found == number, "rank ", rank, " takes ", found, " for ", number);
        use(id(p.param, number), static_cast<size_t>(p.packed_offset + i * p.cols + j));
      }
    }
  }
  /// A block of a matrix in a message to or from its owner.
  struct PlanBlock {
    int32_t matrix;
    int64_t rows, cols, row, col, packed_offset;
  };
  static PlanBlock plan_block(const RankChunk& s, const MatrixBlock& p) {
    return {s.owned[static_cast<size_t>(p.matrix)].matrix,
            p.rows,
            p.cols,
            p.row,
            p.col,
            p.packed_offset};
  }
  /// Returns the blocks that the owner receives in a gather. With partial gradients, these are the
  /// blocks of all partial gradients.
  static std::vector<PlanBlock> arrivals(const RankChunk& s) {
    std::vector<PlanBlock> out;
    if (s.kind == muonrt::ChunkKind::kDirections) {
      for (const MatrixBlock& p : s.gather_matrix_blocks) out.push_back(plan_block(s, p));
    }
    for (const auto& partial_grad : s.partial_grad_blocks) {
      for (const ShardBlock& p : partial_grad)
        out.push_back({p.matrix, p.rows, p.cols, p.global_row, p.global_col, p.packed_offset});
    }
    return out;
  }
  /// Calls use(id, packed offset, index in the matrix) for each element of a block.
  template <class Use>
  void for_each(const PlanBlock& r, const Use& use) const {
    const muonrt::Matrix& m = matrix(r.matrix);
    for (int64_t i = 0; i < r.rows; ++i) {
      for (int64_t j = 0; j < r.cols; ++j) {
        const int64_t place = (r.row + i) * m.cols + r.col + j;
        use(id(m.param, m.index * m.rows * m.cols + place),
            static_cast<size_t>(r.packed_offset + i * r.cols + j), place);
      }
    }
  }

  /// Checks that the owner receives every element of its matrices exactly once from each partial
  /// gradient.
  void gather() const {
    Buffers sent = buffers(&RankChunk::gather_send_bytes, &RankChunk::gather_dtype),
            received = buffers(&RankChunk::gather_receive_bytes, &RankChunk::gather_dtype);
    for (const auto& [rank, chunk] : current_) {
      for (const ShardBlock& p : chunk->gather_blocks)
        for_each(grads_, rank, p, [&](int64_t id, size_t at) { sent.at(rank).at(at) = id; });
    }
    move(sent, received, &RankChunk::gather_dtype, &RankChunk::gather_sends,
         &RankChunk::gather_receives);
    for (const auto& [rank, chunk] : current_) {
      std::map<std::pair<int32_t, int64_t>, int> filled;
      for (const PlanBlock& r : arrivals(*chunk)) {
        for_each(r, [&](int64_t id, size_t at, int64_t place) {
          expect(received.at(rank).at(at) == id, "element ", place, " arrived wrong at ", rank);
          ++filled[{r.matrix, place}];
        });
      }
      for (const muonrt::OwnedMatrix& o : chunk->owned) {
        const auto param = static_cast<size_t>(matrix(o.matrix).param);
        const int64_t partial_grads = grad_layout(plan_.problem().params[param]).partial_count();
        for (int64_t place = 0; place < o.rows * o.cols; ++place)
          expect(filled[{o.matrix, place}] == partial_grads, "matrix ", o.matrix, ": element ",
                 place, " arrived ", filled[{o.matrix, place}], " times");
      }
    }
  }

  void return_updates() {
    Buffers sent = buffers(&RankChunk::return_send_bytes, &RankChunk::return_dtype),
            received = buffers(&RankChunk::return_receive_bytes, &RankChunk::return_dtype);
    for (const auto& [rank, chunk] : current_) {
      for (const MatrixBlock& p : chunk->return_matrix_blocks)
        for_each(plan_block(*chunk, p),
                 [&](int64_t id, size_t at, int64_t) { sent.at(rank).at(at) = id; });
    }
    move(sent, received, &RankChunk::return_dtype, &RankChunk::return_sends,
         &RankChunk::return_receives);
    const Buffers arrived = received;
    move(arrived, received, &RankChunk::return_dtype, &RankChunk::relay_sends,
         &RankChunk::relay_receives);
    for (const auto& [rank, chunk] : current_) {
      for (const ShardBlock& p : chunk->return_blocks) {
        for_each(held_, rank, p, [&](int64_t id, size_t at) {
          expect(received.at(rank).at(at) == id, "rank ", rank, ", param ", p.param,
                 ": an element came back wrong");
          ++returned_[{rank, id}];
        });
      }
    }
  }

  const Plan& plan_;
  std::vector<std::vector<RankChunk>> chunks_;  // for each rank
  std::vector<naive::Held> held_, grads_;       // of each parameter, and of its gradient
  std::map<int, const RankChunk*> current_;     // the ranks that take part in the current chunk
  std::map<std::pair<int, int64_t>, int> returned_;
};

/// Runs a step, and returns the first error or "".
inline std::string run_step(const Plan& plan, std::vector<std::vector<RankChunk>> chunks) {
  try {
    Simulation(plan, std::move(chunks)).run();
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}
inline std::string run_step(const Plan& plan) {
  return run_step(plan, plan_case::all_rank_chunks(plan));
}

}  // namespace plan_simulation
