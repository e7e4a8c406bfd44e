// Compares the memory that a plan states with the memory that ranks allocate.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "backend/health.hpp"
#include "base/checked.hpp"
#include "base/text.hpp"
#include "host/host_device.hpp"
#include "optimizer/finite_check.hpp"
#include "optimizer/problem.hpp"
#include "pipeline/batches.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"
#include "unit/plan/plan_cases.hpp"

using namespace muonrt;

namespace {

/// Returns a plan for one rank with `count` matrices of each shape, all in the standard form of
/// Newton-Schulz.
Plan plan_of(const std::vector<std::pair<std::vector<int64_t>, int>>& shapes) {
  Problem p;
  const auto on = plan_case::mesh({1});
  for (const auto& [shape, count] : shapes) {
    for (int i = 0; i < count; ++i) {
      plan_case::add(p, plan_case::muon(cat(shape[0], "x", shape[1], ".", i), on, shape));
      p.params.back().form = FormChoice::kStandard;
    }
  }
  return Plan(p);
}

std::vector<NewtonSchulz> methods_in(DType iteration) {
  OptimizerSettings settings;
  settings.groups = {GroupSettings::defaults(Role::kMuon)};
  settings.groups[0].form = FormChoice::kStandard;
  settings.groups[0].iteration_dtype = iteration;
  return make_newton_schulz(settings);
}

int64_t one_rank(const std::vector<std::pair<std::vector<int64_t>, int>>& shapes, DType iteration,
                 const MatrixRules& rules, bool health = false) {
  const std::vector<int64_t> bytes =
      scratch_bytes(plan_of(shapes), methods_in(iteration), rules, health);
  REQUIRE(bytes.size() == 1);
  return bytes[0];
}

// A matrix is gathered in bf16. Its iteration needs two buffers X, one R and one Z. Rows are padded
// to 16 elements or 64 bytes.
constexpr int64_t kHost32x48 = 32 * 48 * 2 + (2 * 32 * 48 + 2 * 32 * 32) * 4;
constexpr int64_t kGpu32x48 = 32 * 64 * 2 + (2 * 32 * 64 + 2 * 32 * 32) * 2;
constexpr int64_t kGpu32x64 = kGpu32x48;

}  // namespace

TEST_CASE("scratch: gathered matrices and four iterates of each, worked by hand", "[unit][plan]") {
  CHECK(one_rank({{{32, 48}, 1}}, DType::kF32, HostRules()) == kHost32x48);
  CHECK(one_rank({{{48, 32}, 3}}, DType::kF32, HostRules()) == 3 * kHost32x48);
  CHECK(one_rank({{{32, 48}, 1}}, DType::kBF16, CudaRules()) == kGpu32x48);
  CHECK(one_rank({{{32, 48}, 1}}, DType::kF32, HostRules(), true) ==
        kHost32x48 + round_up(lanczos_space(32, 48).floats * 4, 256));
  CHECK(one_rank({}, DType::kF32, HostRules()) == 0);
}

TEST_CASE("scratch: the memory covers as many matrices as one launch may contain", "[unit][plan]") {
  // Four matrices of 512 x 512 have 2^20 elements, which is the limit of a launch on the host. The
  // fifth matrix is in the next launch.
  constexpr int64_t kElements = int64_t{512} * 512;
  CHECK(one_rank({{{512, 512}, 5}}, DType::kF32, HostRules()) == 4 * kElements * (2 + 4 * 4));
  CHECK(one_rank({{{512, 512}, 5}}, DType::kBF16, CudaRules()) == 5 * kElements * (2 + 4 * 2));
  // If one launch may contain several shapes, all of them need scratch memory at the same time.
  // Otherwise they can share it, and only the larger requirement counts.
  CHECK(one_rank({{{32, 48}, 2}, {{32, 64}, 1}}, DType::kBF16, CudaRules()) ==
        2 * kGpu32x48 + kGpu32x64);
  CHECK(one_rank({{{32, 48}, 2}, {{32, 64}, 1}}, DType::kBF16, CudaRules(false)) == 2 * kGpu32x48);
  // Matrices of equal shape run together even if other parameters are between them.
  CHECK(one_rank({{{32, 48}, 1}, {{16, 16}, 1}, {{48, 32}, 1}}, DType::kF32, HostRules()) ==
        2 * kHost32x48);
}

namespace {

/// Returns the number after `key` in the row of a rank.
int64_t stated(const std::string& json, int rank, const char* key) {
  const size_t row = json.find(cat("{\"rank\":", rank, ","));
  if (row == std::string::npos) return -1;
  const std::string name = cat("\"", key, "\":");
  const size_t at = json.find(name, row);
  return at == std::string::npos ? -1 : std::stoll(json.substr(at + name.size(), 20));
}

/// The sizes of all allocations of a rank.
struct Allocations {
  std::vector<int64_t> sizes;
  Allocator table() {
    return {this,
            [](void* state, int64_t bytes, int32_t, void*) {
              static_cast<Allocations*>(state)->sizes.push_back(bytes);
              return std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
            },
            [](void*, void* memory, int64_t, int32_t, void*) { std::free(memory); }};
  }
};

/// Compares the numbers of Optimizer::planned_memory() and check_bytes() with those that the plan
/// prints. Returns the numbers that differ, or "".
std::string unstated(const Optimizer& o) {
  const std::string json = o.describe(true);
  const size_t block = json.find("\"block_plan\":");
  const std::string full = json.substr(0, block),
                    blocks = block == json.npos ? "" : json.substr(block);
  const PlannedMemory m = o.planned_memory();
  const auto block_value = [&](const char* key) {
    return blocks.empty() ? 0 : stated(blocks, o.rank(), key);
  };
  const std::tuple<const char*, int64_t, int64_t> rows[] = {
      {"message", m.full.message_bytes, stated(full, o.rank(), "message_bytes")},
      {"staged", m.full.staged_bytes, stated(full, o.rank(), "staged_bytes")},
      {"scratch", m.scratch, stated(full, o.rank(), "scratch_bytes")},
      {"state", m.full.state_bytes, stated(full, o.rank(), "state_bytes")},
      {"checks", o.check_bytes(), stated(full, o.rank(), "check_bytes")},
      {"block message", m.block.message_bytes, block_value("message_bytes")},
      {"block staged", m.block.staged_bytes, block_value("staged_bytes")},
      {"block scratch", m.block_scratch, block_value("scratch_bytes")}};
  std::string out;
  for (const auto& [name, number, text] : rows)
    if (number != text) out += cat(name, ": ", number, " and ", text, "; ");
  return out;
}

constexpr int64_t kSlack = 40 * 256;

world::Case memory_case(CommitMode commit, int window) {
  world::Case c = world::on_mesh({3});
  const std::vector<Placement> rows = {{PlacementKind::kShard, 0, 1}};
  for (int i = 0; i < 7; ++i) world::add(c, cat("w", i), {24, 40}, rows);
  world::add(c, "tall", {70, 24}, rows);
  world::add(c, "half", {30, 30}, rows).dtype = DType::kBF16;
  world::Param& rest = world::add(c, "rest", {30, 30}, rows);
  rest.dtype = DType::kBF16;
  rest.master_kind = MasterKind::kRemainder;
  world::add(c, "bias", {50}, rows);
  c.settings.groups = world::default_groups();
  c.settings.groups[0].momentum_dtype = DType::kBF16;
  c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
  c.settings.chunk_bytes = 4000;
  c.settings.window = window;
  c.settings.commit = commit;
  c.settings.health_every = 2;
  return c;
}

/// Makes a host device that records its allocations in `allocations`.
auto device_of(Allocations& allocations) {
  return [&allocations](const OptimizerSettings& s) {
    return host::make_host_device({s.threads, s.portable_gemm, allocations.table()});
  };
}

}  // namespace

TEST_CASE("memory: a rank allocates what its plan states", "[unit][optimizer]") {
  const CommitMode commit = GENERATE(CommitMode::kAtomic, CommitMode::kEager);
  const int window = GENERATE(1, 2);
  const world::Case c = memory_case(commit, window);
  const auto params = static_cast<int64_t>(c.params.size());
  std::vector<Allocations> allocations(3);
  world::on_ranks(3, [&](Comm& comm) {
    std::vector<int64_t>& sizes = allocations[static_cast<size_t>(comm.rank())].sizes;
    world::Rank rank(c, comm, device_of(allocations[static_cast<size_t>(comm.rank())]));
    const std::string json = rank.optimizer().describe(true);
    const auto of = [&](const char* key) { return stated(json, comm.rank(), key); };
    const auto has = [&](int64_t least, int64_t most) {
      return std::any_of(sizes.begin(), sizes.end(),
                         [&](int64_t bytes) { return least <= bytes && bytes <= most; });
    };
    // One allocation contains the messages, the scratch memory, votes, findings and padding. Each
    // of the two chunks in flight has its own buffers. Their size depends on the chunks that use
    // them, so they may be smaller than the largest chunk.
    const int64_t messages = of("message_bytes"),
                  working = of("staged_bytes") + of("scratch_bytes");
    RANK_CHECK(of("scratch_bytes") > 0);
    RANK_CHECK(has(working + (window == 1 ? messages : messages / 2), working + messages + kSlack));
    // Two more allocations contain NorMuon's moments and all other state. The state of each
    // parameter is aligned.
    const int64_t state = of("state_bytes");
    RANK_CHECK(std::any_of(sizes.begin(), sizes.end(), [&](int64_t bytes) {
      return has(state - bytes, state - bytes + 3 * 256 * params);
    }));
  });
}

TEST_CASE("memory: a rank allocates what its plan states for the checks of first steps",
          "[unit][optimizer]") {
  const bool replicas = GENERATE(true, false);
  world::Case c = memory_case(CommitMode::kAtomic, 2);
  c.settings.health_every = 0;  // statistics would also allocate such lists
  c.settings.replica_check = replicas ? ReplicaCheck::kFirst : ReplicaCheck::kOff;
  std::vector<Allocations> allocations(3);
  world::on_ranks(3, [&](Comm& comm) {
    std::vector<int64_t>& sizes = allocations[static_cast<size_t>(comm.rank())].sizes;
    world::Rank rank(c, comm, device_of(allocations[static_cast<size_t>(comm.rank())]));
    // Each parameter has six hashes, and seven tallies if there are at most 64 parameters. The host
    // has a copy of each list. Every allocation has 256 additional bytes.
    const auto params = static_cast<int64_t>(c.params.size());
    const int64_t tallies = params * 7 * static_cast<int64_t>(sizeof(Tally));
    const int64_t hashes = params * 6 * 8;
    const auto count = [&](int64_t list) {
      return std::count(sizes.begin(), sizes.end(), list + 256);
    };
    RANK_CHECK(count(tallies) == 2);
    RANK_CHECK(count(hashes) == (replicas ? 2 : 0));
    const std::string json = rank.optimizer().describe(true);
    RANK_CHECK(stated(json, comm.rank(), "check_bytes") == 2 * (tallies + replicas * hashes));
  });
}

TEST_CASE("memory: the tallies of first steps do not grow with the number of parameters",
          "[unit][optimizer]") {
  CHECK(FiniteCheck::bytes(3) == 3 * 7 * static_cast<int64_t>(sizeof(Tally)));
  CHECK(FiniteCheck::bytes(70000) == 64 * 7 * static_cast<int64_t>(sizeof(Tally)));
}

TEST_CASE("memory: the numbers of a rank are those that its plan prints", "[unit][optimizer]") {
  struct Variant {
    const char* what;
    void (*change)(world::Case&);
  };
  const auto variant =
      GENERATE(Variant{"atomic", [](world::Case&) {}},
               Variant{"eager", [](world::Case& c) { c.settings.commit = CommitMode::kEager; }},
               Variant{"no checks of replicas",
                       [](world::Case& c) { c.settings.replica_check = ReplicaCheck::kOff; }},
               Variant{"blocks",
                       [](world::Case& c) {
                         c.settings.health_every = 0;
                         c.settings.groups[0].normuon_axis = NormuonAxis::kOff;
                         c.settings.groups[0].blocks = {3, 1, 3};
                       }},
               Variant{"a rank without parameters", [](world::Case& c) { c.world = 4; }},
               Variant{"partial gradients", [](world::Case& c) {
                         for (world::Param& p : c.params) {
                           p.placements = {{PlacementKind::kReplicate, 0, 1}};
                           p.grad_placements = {{PlacementKind::kPartial, 0, 1}};
                           p.partial_grads = 3;
                         }
                       }});
  INFO(variant.what);
  world::Case c = memory_case(CommitMode::kAtomic, 2);
  variant.change(c);
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    const std::string problem = unstated(rank.optimizer());
    RANK_CHECK(problem == "");
    if (c.settings.groups[0].blocks.period > 1)
      RANK_CHECK(rank.optimizer().planned_memory().block_scratch > 0);
  });
}
