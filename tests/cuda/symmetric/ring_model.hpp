#pragma once

#include "cuda/symmetric/job_list.hpp"
#include "cuda/symmetric/ring.hpp"
#include "cuda/symmetric/ring_machine.hpp"

// The actions that the threads of sm90.cu perform on the ring, step by step, with the names of the
// functions in sm90.cu. small_ring_model.hpp models sm90_small.cu. Like the kernels, the model
// computes the phases with ring.hpp. One thread models a whole warpgroup. Planted faults show that
// the model detects errors.
namespace ring_model {

using muonrt::cuda::JobKind;

enum class Fault {
  kNone,
  kOneStage,            // the ring has one stage, which is released only after the next stage has
                        // arrived
  kNoEmptyWait,         // a producer fills a stage while it is being read
  kNoPeerWait,          // a producer copies into the other block's stage while it is being read
  kNoPeerWaitAtD,       // before it copies D, a producer does not wait for the other block
  kNoPeerArrival,       // consumers do not release the stages of the other block
  kEarlyRelease,        // a stage is released while its products are in flight
  kUnfinishedRelease,   // a stage is released before its products are complete
  kNoLastRelease,       // the last stage of a tile's products is not released
  kNoLastReleaseOfOne,  // one consumer does not release the last stage of a tile's products
  kNoReleaseOfD,        // the stages of D are not released
  kWrongParity,         // a producer waits for the phase after the required phase
  kNoFullWait,          // a consumer reads before the copies have arrived
  kFillsAlone,          // fills D of a pair two phases ahead of the other block
  kDOfOneBlock,         // only one block of a pair has D
  kDeeperInOneBlock,    // one block of a pair has one more stage
  kPairsLast,           // a block computes its own tile before a pair
  kHalfForOne,          // a pair's half of B is copied to only one block
  kNoLastClusterSync,   // a block ends while the other block still copies into it
  // The following faults concern counted jobs.
  kTakenTooSoon,  // the index of a job is stored before its stage is free
  kNoLastFill,    // no fill reports to the consumers that there are no more jobs
  kTakenUnread,   // a consumer reads the index before it waits for the fill
  // The following faults concern small tiles.
  kDOverSums,      // D is copied to the memory of the slices' sums
  kReusedEarly,    // a block overwrites its sums after it has read only the sums that it needs
  kNoClusterSync,  // sums of slices are read before the barrier of the blocks
  kSumsTooSoon     // a block writes its sums to a stage that its products read
};

/// A tile as the ring processes it. If the tile has several slices, each slice sums the products
/// over its part of the depth.
struct Tile {
  JobKind kind;
  int stages;
  bool d = false, once = false;  // once: rows that A and B have in common are copied once
  int slices = 1;
  bool dense = false;  // boxes of B have 64 columns
};
using Tiles = std::vector<Tile>;

/// Writes the program of one thread of block `rank`.
class Writer {
 public:
  Writer(Fault planted, int rank) : fault_(planted), own_(1u << rank) {}

  bool has(Fault fault) const { return fault_ == fault; }
  int ring() const { return has(Fault::kOneStage) ? 1 : muonrt::cuda::kRingStages; }

  void wait(Name name, int fill, uint32_t parity) {
    program.push_back({Action::Kind::kWait, name, stage_of(fill), own_, parity});
  }
  void wait_full(int fill) {
    if (!has(Fault::kNoFullWait)) wait(Name::kFull, fill, muonrt::cuda::parity_of(fill, ring()));
  }
  void wait_free(Name name, int fill) {
    const uint32_t parity = muonrt::cuda::parity_before(fill, ring());
    wait(name, fill, has(Fault::kWrongParity) ? parity ^ 1u : parity);
  }
  bool waits(int fill) const { return muonrt::cuda::waits(fill, ring()); }
  void arrive(Name name, int fill, unsigned blocks, int units = 0) {
    program.push_back({Action::Kind::kArrive, name, stage_of(fill), blocks, 0, units});
  }
  void copy(int fill, unsigned blocks, const Contents& contents) {
    program.push_back({Action::Kind::kCopy, Name::kFull, stage_of(fill), blocks, 0, 0, contents});
  }
  void read(int fill, const Contents& contents) {
    program.push_back({Action::Kind::kRead, Name::kFull, stage_of(fill), own_, 0, 0, contents});
  }
  /// Ends the read. Afterwards the contents may change.
  void read_end(int fill, const Contents& contents) {
    program.push_back({Action::Kind::kReadEnd, Name::kFull, stage_of(fill), own_, 0, 0, contents});
  }
  void write_first_stage(const Contents& contents) { write(0, contents); }
  void write(int fill, const Contents& contents) {
    program.push_back({Action::Kind::kWrite, Name::kFull, stage_of(fill), own_, 0, 0, contents});
  }
  void read_first_stage(unsigned blocks, const Contents& contents) {
    for (const auto kind : {Action::Kind::kRead, Action::Kind::kReadEnd})
      program.push_back({kind, Name::kFull, 0, blocks, 0, 0, contents});
  }
  /// Waits at the barrier of the cluster's blocks for the n-th time, where n is `turn`.
  void cluster_sync(int turn) {
    program.push_back({Action::Kind::kArrive, Name::kClusterSync, 0, own_});
    program.push_back(
        {Action::Kind::kWait, Name::kClusterSync, 0, own_, static_cast<uint32_t>(turn) & 1u});
  }
  unsigned own() const { return own_; }

  Program program;

 private:
  int stage_of(int fill) const { return muonrt::cuda::stage_of(fill, ring()); }

  Fault fault_;
  unsigned own_;
};

/// The threads of one block of the kernel in sm90.cu. A unit is 64 rows (8 KB). A stage contains
/// two units of A and four units of B, or two units for each box of D.
class LargeBlock {
 public:
  /// @param blocks  number of blocks of the cluster: 2 if the list contains pairs.
  /// @param skew    number of stages by which the second consumer begins later.
  /// @param counted whether the tiles are taken from a counter, one by one.
  LargeBlock(const Tiles& tiles, Fault fault, int rank, int blocks, int skew, bool counted)
      : tiles_(tiles),
        fault_(fault),
        counted_(counted),
        rank_(rank),
        skew_(skew),
        other_(blocks == 2 ? 1u << (rank ^ 1) : 0) {}

  std::vector<Program> programs() const { return {produce(), consume(0), consume(1)}; }

 private:
  Content a(int tile, int depth, int half) const { return {tile, depth, 10 * rank_ + half}; }
  /// Returns the contents of B. Its rows are equal in both blocks of a pair.
  Content b(int tile, int depth, int unit) const {
    const Tile& t = tiles_[static_cast<size_t>(tile)];
    if (t.once && unit < 2) return a(tile, depth, unit);
    return {tile, depth, 20 + unit + (t.kind == JobKind::kPair ? 0 : 10 * rank_)};
  }
  Content d(int tile, int square, int half) const {
    return {tile, -2, 40 + 10 * rank_ + 2 * square + half};
  }

  /// Returns the index of a job, or the value that means that there are no more jobs.
  Contents taken(int tile) const {
    Contents contents;
    contents.add(kUnits - 1, {tile, -5, rank_});
    return contents;
  }

  void open_stage(Writer& w, int fill, bool pair, int units) const {
    if (w.waits(fill)) {
      if (!w.has(Fault::kNoEmptyWait)) w.wait_free(Name::kEmpty, fill);
      if (pair && !w.has(Fault::kNoPeerWait)) w.wait_free(Name::kPeerEmpty, fill);
    }
    w.arrive(Name::kFull, fill, w.own(), units);
  }

  void produce_d(Writer& w, int tile, int& fill) const {
    const Tile& t = tiles_[static_cast<size_t>(tile)];
    const bool pair = t.kind == JobKind::kPair;
    for (int half = 0; half < (t.kind == JobKind::kSquare ? 1 : 2); ++half, ++fill) {
      const int boxes = t.kind == JobKind::kMedium && half == 1 ? 1 : 2;
      open_stage(w, fill, pair && !w.has(Fault::kNoPeerWaitAtD), 2 * boxes);
      w.arrive(Name::kFull, fill, pair && !w.has(Fault::kFillsAlone) ? other_ : w.own());
      for (int box = 0; box < boxes; ++box) {
        Contents contents;
        for (int u = 0; u < 2; ++u) contents.add(2 * box + u, d(tile, 2 * half + box, u));
        w.copy(fill, w.own(), contents);
      }
    }
  }

  void produce_job(Writer& w, int tile, int& fill) const {
    const Tile& t = tiles_[static_cast<size_t>(tile)];
    const bool pair = t.kind == JobKind::kPair, medium = t.kind == JobKind::kMedium;
    const int rows = medium || t.dense ? 1 : 2;  // number of units in a box of B
    const int of_cell = 2 / rows, there = t.once ? of_cell : 0;
    const int boxes = medium ? 3 : t.kind == JobKind::kSquare ? of_cell : 2 * of_cell;
    for (int depth = 0; depth < t.stages; ++depth, ++fill) {
      const bool begins = counted_ && depth == 0;
      if (begins && w.has(Fault::kTakenTooSoon)) w.write(fill, taken(tile));
      open_stage(w, fill, pair, 2 + (boxes - there) * rows);
      if (begins) w.write(fill, taken(tile));
      w.arrive(Name::kFull, fill, w.own());
      Contents of_a;
      for (int u = 0; u < 2; ++u) of_a.add(u, a(tile, depth, u));
      w.copy(fill, w.own(), of_a);
      const int first = pair ? rank_ * of_cell : there, end = pair ? first + of_cell : boxes;
      for (int box = first; box < end; ++box) {
        Contents of_b;
        for (int u = 0; u < rows; ++u)
          of_b.add(2 + (box - there) * rows + u, b(tile, depth, box * rows + u));
        w.copy(fill, pair && !w.has(Fault::kHalfForOne) ? w.own() | other_ : w.own(), of_b);
      }
    }
    if (t.d) produce_d(w, tile, fill);
  }

  Program produce() const {
    Writer w(fault_, rank_);
    int fill = 0;
    const auto tiles = static_cast<int>(tiles_.size());
    for (int tile = 0; tile < tiles; ++tile) produce_job(w, tile, fill);
    if (counted_ && !w.has(Fault::kNoLastFill)) {
      open_stage(w, fill, false, 0);
      w.write(fill, taken(tiles));
      w.arrive(Name::kFull, fill, w.own());
    }
    if (!w.has(Fault::kNoLastClusterSync)) w.cluster_sync(0);
    return w.program;
  }

  void release(Writer& w, int fill, bool pair) const {
    w.arrive(Name::kEmpty, fill, w.own());
    if (pair && !w.has(Fault::kNoPeerArrival)) w.arrive(Name::kPeerEmpty, fill, other_);
  }

  /// Returns the operands in a stage that one consumer's products read.
  Contents operands(int tile, int depth, int consumer) const {
    const Tile& t = tiles_[static_cast<size_t>(tile)];
    Contents contents;
    if (!t.once) contents.add(consumer, a(tile, depth, consumer));
    for (int u = 0; u < muonrt::cuda::cols_of(t.kind) / 64; ++u)
      contents.add((t.once ? 0 : 2) + u, b(tile, depth, u));
    return contents;
  }

  /// Models the kernel's functions multiply() and multiply_stage().
  void multiply(Writer& w, int tile, int begin, int end, int consumer, int& fill) const {
    const bool pair = tiles_[static_cast<size_t>(tile)].kind == JobKind::kPair;
    Contents before;
    const auto finish = [&](int finished) {
      if (w.has(Fault::kUnfinishedRelease)) release(w, finished, pair);
      w.read_end(finished, before);
    };
    for (int depth = begin; depth < end; ++depth, ++fill) {
      w.wait_full(fill);
      const Contents now = operands(tile, depth, consumer);
      w.read(fill, now);
      if (w.has(Fault::kEarlyRelease)) release(w, fill, pair);
      if (depth > begin) {
        finish(fill - 1);
        if (releases(w)) release(w, fill - 1, pair);
      }
      before = now;
    }
    finish(fill - 1);
    const bool forgets = w.has(Fault::kNoLastRelease) ||
                         (w.has(Fault::kNoLastReleaseOfOne) && consumer == 1 && rank_ == 0);
    if (releases(w) && !forgets) release(w, fill - 1, pair);
  }
  /// Returns whether the stage is released at the same point as in the kernel.
  static bool releases(const Writer& w) {
    return !w.has(Fault::kEarlyRelease) && !w.has(Fault::kUnfinishedRelease);
  }

  void finish_tile(Writer& w, int tile, int consumer, int& fill) const {
    const Tile& t = tiles_[static_cast<size_t>(tile)];
    const int squares = muonrt::cuda::cols_of(t.kind) / 64;
    for (int square = 0; square < squares; square += 2, ++fill) {
      w.wait_full(fill);
      Contents contents;
      for (int s = square; s < std::min(square + 2, squares); ++s)
        contents.add(2 * (s - square) + consumer, d(tile, s, consumer));
      w.read(fill, contents);
      w.read_end(fill, contents);
      if (!w.has(Fault::kNoReleaseOfD)) release(w, fill, t.kind == JobKind::kPair);
    }
  }

  void read_taken(Writer& w, int tile, int fill) const {
    if (!counted_) return;
    if (!w.has(Fault::kTakenUnread)) w.wait_full(fill);
    w.read(fill, taken(tile));
    w.read_end(fill, taken(tile));
  }

  Program consume(int consumer) const {
    Writer w(fault_, rank_);
    int fill = 0;
    if (consumer == 1 && !tiles_.empty()) w.wait_full(std::min(skew_, tiles_[0].stages - 1));
    for (int tile = 0; tile < static_cast<int>(tiles_.size()); ++tile) {
      const Tile& t = tiles_[static_cast<size_t>(tile)];
      read_taken(w, tile, fill);
      for (int slice = 0; slice < t.slices; ++slice)
        multiply(w, tile, muonrt::cuda::slice_begin(t.stages, slice, t.slices),
                 muonrt::cuda::slice_begin(t.stages, slice + 1, t.slices), consumer, fill);
      if (t.d) finish_tile(w, tile, consumer, fill);
    }
    read_taken(w, static_cast<int>(tiles_.size()), fill);
    if (!w.has(Fault::kNoLastClusterSync)) w.cluster_sync(0);
    return w.program;
  }

  const Tiles& tiles_;
  Fault fault_;
  bool counted_;
  int rank_, skew_;
  unsigned other_;  // the other block of the cluster
};

/// Returns a launch of the blocks of a cluster with large tiles, or of one block.
/// @param skew, counted  see Sm90Tuning.
inline Launch large_launch(const std::vector<Tiles>& tiles, Fault fault, int skew,
                           bool counted = false) {
  Launch launch{Writer(fault, 0).ring(), 2, muonrt::cuda::kConsumers, muonrt::cuda::kConsumers, {}};
  for (int rank = 0; rank < static_cast<int>(tiles.size()); ++rank)
    launch.blocks.push_back(LargeBlock(tiles[static_cast<size_t>(rank)], fault, rank,
                                       static_cast<int>(tiles.size()), skew, counted)
                                .programs());
  return launch;
}

}  // namespace ring_model
