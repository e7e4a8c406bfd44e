// Tests models of the rings of the sm_90a kernels (ring_model.hpp), for tile lists like those of
// the kernels and for many orders of events. A launch must end, and all stages must have the
// expected contents. If a fault is planted, the test must detect an error.

#include <catch2/catch.hpp>
#include <map>
#include <span>
#include <tuple>

#include "base/error.hpp"
#include "cuda/symmetric/small_ring_model.hpp"

using namespace ring_model;
using namespace muonrt::cuda;

namespace {

using Random = std::mt19937_64;

int below(Random& random, int end) { return static_cast<int>(random() % static_cast<size_t>(end)); }

/// Returns a tile whose depth is smaller than, equal to, or larger than the ring.
Tile tile_of(Random& random, JobKind kind) {
  const bool may_touch = kind != JobKind::kPair;
  return {kind, 1 + below(random, 2 * kRingStages), random() % 2 == 0,
          may_touch && random() % 3 == 0};
}

/// Returns the tiles of two blocks. Both blocks begin with the same pairs, followed by tiles that
/// may differ.
std::vector<Tiles> drawn_cluster(Random& random) {
  std::vector<Tiles> blocks(2);
  for (int pairs = below(random, 4); pairs > 0; --pairs) {
    blocks[0].push_back(tile_of(random, JobKind::kPair));
    blocks[1].push_back(blocks[0].back());
  }
  for (Tiles& tiles : blocks)
    for (int own = below(random, 4); own > 0; --own)
      tiles.push_back(tile_of(random, random() % 2 == 0 ? JobKind::kWide : JobKind::kSquare));
  return blocks;
}

/// Returns the jobs of one cluster in the list of a launch of two shapes.
std::vector<Tiles> listed_cluster(Random& random) {
  std::vector<SymmetricShape> shapes;
  std::vector<bool> with_d;
  for (int i = 0; i < 2; ++i) {
    shapes.push_back({1 + below(random, 1000), 1 + below(random, 400), 1 + below(random, 2), 1});
    with_d.push_back(random() % 2 == 0);
  }
  const bool same = random() % 2 == 0;
  const int blocks = 4 + 2 * below(random, 3), first = 2 * below(random, blocks / 2);
  const JobList list = mixed_jobs(shapes, blocks, {.pairs = true});
  std::vector<Tiles> cluster;
  for (const int block : {first, first + 1}) {
    const auto at = static_cast<size_t>(block);
    cluster.emplace_back();
    for (const TileJob& job :
         std::span(list.jobs).subspan(static_cast<size_t>(list.first[at]),
                                      static_cast<size_t>(list.first[at + 1] - list.first[at]))) {
      const auto shape = static_cast<size_t>(job.shape);
      cluster.back().push_back({job.kind, stages_of(shapes[shape].k), with_d[shape],
                                same && job.row * kCell == first_col_of(job)});
    }
  }
  return cluster;
}

/// Returns the tiles of one block: medium tiles, or squares whose depth is divided into slices.
std::vector<Tiles> drawn_block(Random& random) {
  std::vector<Tiles> blocks(1);
  const int slices = below(random, 3) * 2;
  for (int own = 1 + below(random, 4); own > 0; --own) {
    blocks[0].push_back(tile_of(random, slices > 0 ? JobKind::kSquare : JobKind::kMedium));
    Tile& tile = blocks[0].back();
    tile.slices = std::max(slices, 1);
    tile.stages = std::max(tile.stages, slices);
  }
  return blocks;
}

/// Returns tile lists for a cluster's blocks, like the lists of real launches. Of the launches
/// without medium tiles and slices, a third compute dense products.
std::vector<Tiles> tiles_of_run(int number, Random& random) {
  if (number % 8 == 1) return drawn_block(random);
  std::vector<Tiles> cluster = number % 8 == 0 ? listed_cluster(random) : drawn_cluster(random);
  for (Tiles& tiles : cluster)
    for (Tile& tile : tiles) {
      tile.dense = number % 3 == 0;
      tile.once = tile.once && !tile.dense;
    }
  return cluster;
}

/// Changes the lists if the planted fault is a list that does not occur in real launches.
void plant(Fault fault, std::vector<Tiles>& cluster, Random& random) {
  if (cluster.size() < 2 || cluster[1].empty() || cluster[1][0].kind != JobKind::kPair) return;
  if (fault == Fault::kDOfOneBlock) cluster[1][0].d = !cluster[0][0].d;
  if (fault == Fault::kDeeperInOneBlock) ++cluster[1][0].stages;
  if (fault == Fault::kPairsLast)
    for (Tiles& tiles : cluster) tiles.insert(tiles.begin(), tile_of(random, JobKind::kSquare));
}

Tile drawn_small(Random& random) {
  Tile tile = tile_of(random, random() % 2 == 0 ? JobKind::kWide : JobKind::kSquare);
  if (tile.kind == JobKind::kSquare) tile.slices = 1 << below(random, 3);
  tile.stages = std::max(tile.stages * tile.slices - below(random, tile.slices), tile.slices);
  return tile;
}

/// Runs different lists in different orders. Returns the first violation and the number of its run,
/// or "" if there is no violation.
template <class MakeLaunch>
std::string first_wrong(int runs, const MakeLaunch& make_launch) {
  for (int i = 1; i <= runs; ++i) {
    Random random(static_cast<uint64_t>(i));
    const Launch launch = make_launch(i, random);
    const std::string wrong = Machine(launch, static_cast<uint64_t>(i)).run();
    if (!wrong.empty()) return muonrt::cat("run ", i, ": ", wrong);
  }
  return "";
}

std::string large(Fault fault, int runs) {
  return first_wrong(runs, [&](int number, Random& random) {
    std::vector<Tiles> cluster = tiles_of_run(number, random);
    plant(fault, cluster, random);
    return large_launch(cluster, fault, number % muonrt::cuda::kRingStages);
  });
}

/// Runs blocks that take tiles without pairs from a counter.
std::string counted(Fault fault, int runs) {
  return first_wrong(runs, [&](int number, Random& random) {
    std::vector<Tiles> blocks(static_cast<size_t>(1 + below(random, 2)));
    for (Tiles& tiles : blocks)
      for (int own = below(random, 5); own > 0; --own)
        tiles.push_back(tile_of(random, random() % 2 == 0 ? JobKind::kWide : JobKind::kSquare));
    return large_launch(blocks, fault, number % muonrt::cuda::kRingStages, true);
  });
}

std::string small(Fault fault, int runs) {
  return first_wrong(runs,
                     [&](int, Random& random) { return small_launch(drawn_small(random), fault); });
}

constexpr int kRuns = 20000, kRunsWithFault = 2000;

}  // namespace

TEST_CASE("symmetric ring: no order of events overwrites data, misses data or deadlocks",
          "[emulated]") {
  CHECK(large(Fault::kNone, kRuns) == "");
}

TEST_CASE("symmetric ring: the lists have every permitted pair of kinds, with and without D",
          "[emulated]") {
  // Each entry contains the kinds of two consecutive tiles, whether each of them has D, and whether
  // the ring wraps around in the second tile.
  std::map<std::tuple<JobKind, JobKind, bool, bool, bool>, int> found;
  for (int i = 1; i <= kRuns / 5; ++i) {
    Random random(static_cast<uint64_t>(i));
    for (const Tiles& tiles : tiles_of_run(i, random))
      for (size_t t = 1; t < tiles.size(); ++t)
        ++found[{tiles[t - 1].kind, tiles[t].kind, tiles[t - 1].d, tiles[t].d,
                 tiles[t].stages > kRingStages}];
  }
  const JobKind pair = JobKind::kPair, wide = JobKind::kWide, square = JobKind::kSquare;
  for (const auto& [before, after] : {std::pair(pair, pair),
                                      {pair, wide},
                                      {pair, square},
                                      {wide, wide},
                                      {wide, square},
                                      {square, wide},
                                      {square, square},
                                      {JobKind::kMedium, JobKind::kMedium}})
    for (int which = 0; which < 8; ++which) {
      CAPTURE(static_cast<int>(before), static_cast<int>(after), which);
      CHECK(found[{before, after, (which & 1) != 0, (which & 2) != 0, (which & 4) != 0}] >= 20);
    }
}

TEST_CASE("symmetric ring: blocks that take tiles from a counter never overwrite data or deadlock",
          "[emulated]") {
  CHECK(counted(Fault::kNone, kRuns) == "");
  for (const Fault fault : {Fault::kNoEmptyWait, Fault::kNoLastRelease, Fault::kTakenTooSoon,
                            Fault::kNoLastFill, Fault::kTakenUnread}) {
    CAPTURE(static_cast<int>(fault));
    CHECK(counted(fault, kRunsWithFault) != "");
  }
}

TEST_CASE("symmetric ring: small tiles never overwrite data, miss data or deadlock", "[emulated]") {
  CHECK(small(Fault::kNone, kRuns) == "");
}

TEST_CASE("symmetric ring: each planted fault is found", "[emulated]") {
  for (const Fault fault :
       {Fault::kOneStage, Fault::kNoEmptyWait, Fault::kNoPeerWait, Fault::kNoPeerWaitAtD,
        Fault::kNoPeerArrival, Fault::kEarlyRelease, Fault::kUnfinishedRelease,
        Fault::kNoLastRelease, Fault::kNoLastReleaseOfOne, Fault::kNoReleaseOfD,
        Fault::kWrongParity, Fault::kNoFullWait, Fault::kFillsAlone, Fault::kDOfOneBlock,
        Fault::kDeeperInOneBlock, Fault::kPairsLast, Fault::kHalfForOne,
        Fault::kNoLastClusterSync}) {
    CAPTURE(static_cast<int>(fault));
    CHECK(large(fault, kRunsWithFault) != "");
  }
  for (const Fault fault : {Fault::kOneStage, Fault::kNoLastRelease, Fault::kNoReleaseOfD})
    CHECK_THAT(large(fault, kRunsWithFault), Catch::EndsWith("no thread can run"));
}

TEST_CASE("symmetric ring: each fault planted in the ring of small tiles is found", "[emulated]") {
  for (const Fault fault :
       {Fault::kOneStage, Fault::kNoEmptyWait, Fault::kEarlyRelease, Fault::kUnfinishedRelease,
        Fault::kWrongParity, Fault::kNoFullWait, Fault::kNoLastClusterSync, Fault::kDOverSums,
        Fault::kReusedEarly, Fault::kNoClusterSync, Fault::kSumsTooSoon}) {
    CAPTURE(static_cast<int>(fault));
    CHECK(small(fault, kRunsWithFault) != "");
  }
}
