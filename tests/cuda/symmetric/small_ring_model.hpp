#pragma once

#include "cuda/symmetric/ring_model.hpp"

// The actions that the threads of sm90_small.cu perform on the ring, as in ring_model.hpp.
namespace ring_model {

/// The threads of one block of sm90_small.cu, which computes a tile of one or two squares. A unit
/// is 64 rows of an operand, or a square of D. If the depth is divided into slices, each block of
/// the cluster computes one slice.
class SmallBlock {
 public:
  SmallBlock(const Tile& tile, Fault fault, int rank)
      : tile_(tile),
        fault_(fault),
        rank_(rank),
        cells_(tile.kind == JobKind::kWide ? 2 : 1),
        begin_(muonrt::cuda::slice_begin(tile.stages, rank, tile.slices)),
        stages_(muonrt::cuda::slice_begin(tile.stages, rank + 1, tile.slices) - begin_) {}

  std::vector<Program> programs() const { return {produce(), consume()}; }

 private:
  Content operand(int fill, int part) const { return {rank_, begin_ + fill, part}; }
  Contents d() const {
    Contents contents;
    for (int square = 0; square < cells_; ++square)
      contents.add((fault_ == Fault::kDOverSums ? 1 : 2) - square, {rank_, -2, square});
    return contents;
  }
  static Contents sums(int rank, int depth = -3) {
    Contents contents;
    for (int u = 0; u < 2; ++u) contents.add(u, {rank, depth, u});
    return contents;
  }

  void open_stage(Writer& w, int fill, int units) const {
    if (w.waits(fill) && !w.has(Fault::kNoEmptyWait)) w.wait_free(Name::kEmpty, fill);
    w.arrive(Name::kFull, fill, w.own(), units);
  }
  void cluster_sync(Writer& w) const {
    if (tile_.slices > 1 && !w.has(Fault::kNoClusterSync)) w.cluster_sync(0);
  }
  void last_cluster_sync(Writer& w) const {
    if (tile_.slices > 1 && !w.has(Fault::kNoLastClusterSync))
      w.cluster_sync(w.has(Fault::kNoClusterSync) ? 0 : 1);
  }

  Program produce() const {
    Writer w(fault_, rank_);
    for (int fill = 0; fill < stages_; ++fill) {
      open_stage(w, fill, 1 + cells_ - tile_.once);
      Contents of_a;
      of_a.add(0, operand(fill, 0));
      w.copy(fill, w.own(), of_a);
      for (int cell = tile_.once; cell < cells_; ++cell) {
        Contents of_b;
        of_b.add(1 + cell - tile_.once, operand(fill, 1 + cell));
        w.copy(fill, w.own(), of_b);
      }
    }
    if (tile_.d) {
      open_stage(w, stages_, cells_);
      w.copy(stages_, w.own(), d());
    }
    cluster_sync(w);
    last_cluster_sync(w);
    return w.program;
  }

  Contents operands(int fill) const {
    Contents contents;
    if (!tile_.once) contents.add(0, operand(fill, 0));
    for (int cell = 0; cell < cells_; ++cell)
      contents.add(1 + cell - tile_.once, operand(fill, tile_.once && cell == 0 ? 0 : 1 + cell));
    return contents;
  }

  void add_slices(Writer& w) const {
    w.write_first_stage(sums(rank_));
    cluster_sync(w);
    for (int slice = 0; slice < tile_.slices; ++slice) w.read_first_stage(1u << slice, sums(slice));
    if (w.has(Fault::kReusedEarly)) w.write_first_stage(sums(rank_, -4));
  }

  Program consume() const {
    Writer w(fault_, rank_);
    for (int fill = 0; fill < stages_; ++fill) {
      w.wait_full(fill);
      w.read(fill, operands(fill));
      if (w.has(Fault::kEarlyRelease)) w.arrive(Name::kEmpty, fill, w.own());
      if (fill == 0) continue;
      if (w.has(Fault::kUnfinishedRelease)) w.arrive(Name::kEmpty, fill - 1, w.own());
      w.read_end(fill - 1, operands(fill - 1));
      if (!w.has(Fault::kEarlyRelease) && !w.has(Fault::kUnfinishedRelease))
        w.arrive(Name::kEmpty, fill - 1, w.own());
    }
    if (tile_.slices > 1 && w.has(Fault::kSumsTooSoon)) add_slices(w);
    w.read_end(stages_ - 1, operands(stages_ - 1));
    if (tile_.slices > 1 && !w.has(Fault::kSumsTooSoon)) add_slices(w);
    if (tile_.d) {
      w.wait_full(stages_);
      w.read(stages_, d());
      w.read_end(stages_, d());
    }
    last_cluster_sync(w);
    return w.program;
  }

  const Tile& tile_;
  Fault fault_;
  int rank_, cells_, begin_, stages_;
};

/// Returns a launch of the blocks that compute a small tile.
inline Launch small_launch(const Tile& tile, Fault fault) {
  Launch launch{Writer(fault, 0).ring(), 1, 1, 1, {}};
  for (int rank = 0; rank < tile.slices; ++rank)
    launch.blocks.push_back(SmallBlock(tile, fault, rank).programs());
  return launch;
}

}  // namespace ring_model
