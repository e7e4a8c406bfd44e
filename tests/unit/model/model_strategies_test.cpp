#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <random>

#include "base/error.hpp"
#include "model/strategies.hpp"
#include "optimizer/problem.hpp"
#include "support/world.hpp"

using namespace muonrt;

namespace strategies {

/// A host with 1 GFLOP/s for every product, 1 GB/s for passes and links, and no latencies. One byte
/// therefore takes the same time as one FLOP.
MachineProfile machine() {
  MachineProfile out;
  out.name = out.title = "test";
  out.gpu = false;
  out.memory_bytes = 1e9;
  out.products = {{1, 1e9, 1e9}};
  out.pass_bytes = 1e9;
  out.node_bytes = out.network_bytes = 1e9;
  out.node_ranks = 4;
  return out;
}

/// The same machine, except that passes and bytes take no time. Only products and exchanges take
/// time, and each exchange takes `exchange` seconds.
MachineProfile without_bytes(double exchange) {
  MachineProfile out = machine();
  out.pass_bytes = out.node_bytes = out.network_bytes = 1e18;
  out.exchange_seconds = exchange;
  return out;
}

/// Returns settings with square f32 matrices of these sizes. The last mesh dimension shards their
/// rows.
OptimizerSettings squares(const std::vector<int64_t>& mesh_shape, const std::vector<int64_t>& sides,
                          int64_t chunk_bytes) {
  OptimizerSettings out = OptimizerSettings::defaults(DeviceKind::kHost);
  out.groups = world::default_groups();
  out.chunk_bytes = chunk_bytes;
  const auto mesh = std::make_shared<Mesh>(mesh_shape, std::vector<std::string>{});
  const auto ranks = static_cast<int>(mesh->size());
  for (size_t i = 0; i < sides.size(); ++i) {
    ParamSettings p;
    p.name = cat("w", i);
    p.layout = Layout::from_cuts(mesh, {sides[i], sides[i]}, {{{mesh->dims() - 1}, 0}});
    p.owner = static_cast<int>(i) % ranks;
    out.params.push_back(std::move(p));
  }
  return out;
}

/// Returns the seconds of the products of a square matrix: five steps of three products.
double products(double side) { return 5 * 3 * 2 * side * side * side / 1e9; }

constexpr int64_t kSide = 64, kElements = kSide * kSide;
constexpr double kUnit = kElements / 1e9;                // a pass over one byte of each element
constexpr double kProducts = 5 * 3 * 2 * kSide * kUnit;  // products(kSide)

}  // namespace strategies

using namespace strategies;

// Bytes that the passes read and write per element. Gradient, momentum and weight have 4 bytes
// each, and the direction has 2 bytes in messages and gathered matrices. The pack reads the
// gradient, reads and writes the momentum, and writes the direction. The normalization reads the
// direction twice and writes an iterate of 4 bytes. The update reads the iterate, and reads and
// writes the weight.
constexpr double kPack = 4 + 8 + 2, kNormalize = 2 * 2 + 4, kUpdate = 4 + 8;

TEST_CASE("modelled strategies: all-gather everywhere computes every matrix on every rank",
          "[unit][model]") {
  // Two ranks hold halves of two matrices. If each matrix has its own chunk, the second gather
  // overlaps with products.
  const Planning two(squares({2}, {kSide, kSide}, 2 * kElements), 2);
  const StrategyStep apart = gather_everywhere(two, machine());
  const double unpack = 2 * 2;
  const double chunk = kPack / 2 + unpack + kNormalize + kUpdate / 2;
  CHECK(apart.critical.products == Approx(2 * kProducts));
  CHECK(apart.critical.local == Approx(2 * chunk * kUnit));
  CHECK(apart.critical.exposed == Approx(0).margin(1e-15));
  CHECK(apart.seconds == Approx(2 * kProducts + 2 * chunk * kUnit));
  CHECK(apart.critical.exchange == Approx(2 * kUnit));  // two halves, 2 bytes for each element
  CHECK(apart.sent_bytes == 2 * kElements);
  // With only one chunk, the gather does not overlap with anything.
  const Planning one(squares({2}, {kSide, kSide}, 4 * kElements), 2);
  const StrategyStep together = gather_everywhere(one, machine());
  CHECK(together.critical.exposed == Approx(2 * kUnit));
  CHECK(together.seconds == Approx(2 * kProducts + 2 * chunk * kUnit + 2 * kUnit));
  // In a muonrt plan with ReplicaMode::kEveryRank, the ranks compute the same products.
  OptimizerSettings repeated = squares({2}, {kSide, kSide}, 2 * kElements);
  repeated.replica_mode = ReplicaMode::kEveryRank;
  for (ParamSettings& p : repeated.params) p.owner = -1;
  CHECK(simulate(Planning(repeated, 2), machine()).critical.products ==
        Approx(apart.critical.products));
}

TEST_CASE("modelled strategies: an all-gather brings a byte to a node once", "[unit][model]") {
  // There are two nodes with two ranks each. A node receives the half of the matrix that the other
  // node holds, and each rank of the node receives half of this half over the network. Each rank
  // lacks three quarters of the matrix, and receives the remaining part from the other rank of its
  // node.
  MachineProfile p = machine();
  p.node_ranks = 2;
  p.node_bytes = 4e9;
  const Planning planning(squares({4}, {kSide}, 2 * kElements), 4);
  const double network = 2 * kElements / 4.0 / 1e9, node = 2 * kElements / 2.0 / 4e9;
  const StrategyStep slow_network = gather_everywhere(planning, p);
  CHECK(slow_network.critical.exchange == Approx(std::max(network, node)));
  CHECK(slow_network.sent_bytes == 2 * kElements * 3 / 4);
  p.node_bytes = 1e9;
  CHECK(gather_everywhere(planning, p).critical.exchange == Approx(4 * node));
}

// Rank 0 owns matrices 0 and 2 and rank 1 owns matrix 1, in two chunks.
TEST_CASE("modelled strategies: owners of whole matrices send nothing in the step, or new weights",
          "[unit][model]") {
  const Planning planning(squares({2}, {kSide, kSide, kSide}, 2 * kElements), 2);
  const StrategyStep permanent = whole_owners(planning, machine(), true);
  const double matrix = kPack + kNormalize + kUpdate;
  CHECK(permanent.seconds == Approx(2 * (kProducts + matrix * kUnit)));
  CHECK(permanent.critical.exchange == 0);
  CHECK(permanent.sent_bytes == 0);
  // The memory consists of weights, gradients and momentum of two matrices, and of scratch memory
  // for one: the gathered matrix and at least two iterates.
  CHECK(permanent.memory_bytes >= 2 * 12 * kElements + (2 + 2 * 4) * kElements);
  CHECK(permanent.memory_bytes < 2 * 12 * kElements + (2 + 6 * 4) * kElements);
  // The owner sends half of the new weights of each matrix, with 2 bytes per element. Rank 0
  // updates matrix 0, updates matrix 2 while it sends the weights of matrix 0, and then sends the
  // weights of matrix 2. Rank 1 waits for this last message and copies it to its half of the
  // matrix. The copy reads and writes 2 bytes for half of the elements.
  const StrategyStep layers = whole_owners(planning, machine(), false);
  const double message = 1, owner = matrix + message;
  CHECK(layers.seconds ==
        Approx(2 * (kProducts + owner * kUnit) + (message + 2 * message) * kUnit));
  CHECK(layers.sent_bytes == 2 * kElements);
  // Each rank also stores weights in the trainer's layout, and the messages of two chunks.
  CHECK(layers.memory_bytes > permanent.memory_bytes);
}

TEST_CASE("modelled strategies: tensor parallelism makes owners gather parts of gradients",
          "[unit][model]") {
  OptimizerSettings settings = squares({2}, {kSide}, 2 * kElements);
  const auto mesh = std::make_shared<Mesh>(std::vector<int64_t>{2}, std::vector<std::string>{"tp"});
  settings.params[0].layout = Layout::from_cuts(mesh, {kSide, kSide}, {{{0}, 0}});
  const StrategyStep step = whole_owners(Planning(settings, 2), machine(), true);
  // The owner receives half of the matrix, and sends half of it back.
  CHECK(step.critical.exchange == Approx(2 * kUnit));
  CHECK(step.seconds == Approx(kProducts + (kPack + kNormalize + kUpdate) * kUnit + 2 * kUnit));
}

TEST_CASE("modelled strategies: round-robin owners of one matrix per chunk", "[unit][model]") {
  // Sorted by size, the matrices are 64, 64 | 32, 32, and each rank owns one matrix of each pair.
  // In the order of the model, rank 0 owns both large matrices. The first gather, the last return
  // and two votes do not overlap with products.
  const double large = products(64), small = products(32), exchange = small / 8;
  const Planning planning(squares({2}, {64, 32, 64, 32}, 1 << 20), 2);
  const StrategyStep sorted = round_robin_in_chunks(planning, without_bytes(exchange));
  CHECK(sorted.critical.products == Approx(large + small));
  CHECK(sorted.seconds == Approx(large + small + 4 * exchange));
  const StrategyStep one = one_by_one(planning, without_bytes(exchange));
  CHECK(one.critical.products == Approx(2 * large));
  CHECK(one.seconds == Approx(2 * large + 4 * exchange));
  // A rank sends its halves of the other rank's matrices, and returns the other halves of its own
  // matrices.
  const int64_t halves = 64 * 64 + 32 * 32;
  CHECK(sorted.sent_bytes == 2 * halves);
}

TEST_CASE("modelled strategies: only sorted round-robin repeats products in replicas",
          "[unit][model]") {
  // The mesh has two replicas of one rank each.
  const Planning planning(squares({2, 1}, {kSide, kSide}, 1 << 20), 2);
  const MachineProfile p = without_bytes(0);
  CHECK(round_robin_in_chunks(planning, p).critical.products == Approx(2 * kProducts));
  CHECK(one_by_one(planning, p).critical.products == Approx(kProducts));
  CHECK(whole_owners(planning, p, false).critical.products == Approx(kProducts));
  CHECK(whole_owners(planning, p, true).critical.products == Approx(kProducts));
  // The mesh has two replicas of two ranks each. A rank sends its half of the other rank's matrix,
  // and later returns half of its own matrix. It sends nothing to the other replica.
  const Planning four(squares({2, 2}, {kSide, kSide}, 1 << 20), 4);
  const StrategyStep repeated = round_robin_in_chunks(four, p);
  CHECK(repeated.critical.products == Approx(kProducts));
  CHECK(repeated.sent_bytes == 2 * kElements);
  // A rank holds whole matrices, so an all-gather moves nothing, but both ranks compute both
  // matrices.
  const StrategyStep all = gather_everywhere(planning, p);
  CHECK(all.critical.products == Approx(2 * kProducts));
  CHECK(all.sent_bytes == 0);
}

TEST_CASE(
    "modelled strategies: a comparison has our plan first, and FLOPs once except where a strategy "
    "repeats them",
    "[unit][model]") {
  for (unsigned seed = 0; seed < 10; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<int64_t> sides;
    for (int i = 0; i < 6; ++i) sides.push_back(16 + static_cast<int64_t>(random() % 100));
    OptimizerSettings settings = squares({2, 3}, sides, 1 << 12);
    for (ParamSettings& p : settings.params) p.owner = -1;
    const Planning planning(settings, 6);
    const MachineProfile p = machine();
    const Simulation ours = simulate(planning, p);
    const std::vector<StrategyStep> rows = compare_strategies(planning, ours, p);
    REQUIRE(rows.size() == 7);
    CHECK(rows[0].seconds == ours.seconds);
    double all = 0, largest = 0;
    for (const int64_t side : sides) {
      all += products(static_cast<double>(side));
      largest = std::max(largest, products(static_cast<double>(side)));
    }
    std::map<std::string, double> busiest;
    for (const StrategyStep& r : rows) {
      CAPTURE(r.name);
      CHECK(r.critical.products + r.critical.local + r.critical.exposed + r.critical.launch ==
            Approx(r.critical.seconds));
      CHECK(r.seconds >= r.critical.seconds);
      CHECK(r.critical.products >= largest * (1 - 1e-9));
      CHECK(!r.assumption.empty());
      CHECK(r.memory_bytes > 0);
      busiest[r.name] = r.critical.products;
    }
    CHECK(busiest["all-gather"] == Approx(all));
    CHECK(busiest["muonrt"] == Approx(busiest["permanent owners"]));
    CHECK(busiest["muonrt"] <= busiest["one by one"] * (1 + 1e-9));
    CHECK(busiest["sorted round-robin"] >= all / 3 * (1 - 1e-9));
    CHECK(busiest["muonrt, each"] >= all / 3 * (1 - 1e-9));
    CHECK(busiest["muonrt, each"] <= busiest["sorted round-robin"] * (1 + 1e-9));
  }
}
