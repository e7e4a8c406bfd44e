#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "plan/report/traffic.hpp"
#include "support/attempts.hpp"
#include "support/check_same.hpp"
#include "support/covering.hpp"
#include "support/numerics/gradient_cases.hpp"
#include "support/rank_check.hpp"
#include "support/sanitized.hpp"
#include "support/wrapped_device.hpp"

// Tests partial gradients. For a given number of partial gradients, results must be bitwise
// identical to those of one rank whose gradient is the sum of the partial gradients. The sum is
// computed in f32, in the order of mesh coordinates.

using namespace muonrt;

namespace {

const Placement kP{PlacementKind::kPartial, 0, 1}, kR{PlacementKind::kReplicate, 0, 1};
Placement shard(int dim) { return {PlacementKind::kShard, dim, 1}; }

struct MeshCase {
  std::string name;
  int partial_grads;
  std::vector<int64_t> mesh;
  std::vector<Placement> placements;
  std::vector<int32_t> ranks;
};

std::vector<MeshCase> meshes() {
  return {{"one partial gradient", 1, {1}, {kP}, {}},
          {"one partial gradient of a shard", 1, {1, 3}, {kP, shard(0)}, {}},
          {"one partial gradient, replicated", 1, {2, 1}, {kR, kP}, {}},
          {"DDP", 2, {2}, {kP}, {}},
          {"DDP, ranks turned round", 2, {2}, {kP}, {1, 0}},
          {"rows within", 2, {2, 2}, {kP, shard(0)}, {}},
          {"rows without, ranks mixed", 2, {3, 2}, {shard(0), kP}, {4, 1, 0, 5, 3, 2}},
          {"columns, replicated", 2, {2, 2, 2}, {kR, kP, shard(-1)}, {}},
          {"DDP of three", 3, {3}, {kP}, {}},
          {"DDP of three, ranks mixed", 3, {3}, {kP}, {2, 0, 1}},
          {"three, rows and replicas", 3, {3, 2, 2}, {kP, shard(0), kR}, {}},
          {"two dims", 4, {2, 2}, {kP, kP}, {}},
          {"two dims around a shard, ranks mixed",
           4,
           {2, 2, 2},
           {kP, shard(0), kP},
           {7, 2, 4, 1, 0, 6, 3, 5}}};
}

struct Settings {
  bool half = false;
  DType transport = DType::kBF16;
  int window = 3;
  CommitMode commit = CommitMode::kAtomic;
  int64_t chunk = 1 << 20;
};

void take(const Settings& s, world::Case& c) {
  c.settings.window = s.window;
  c.settings.commit = s.commit;
  c.settings.chunk_bytes = s.chunk;
  c.settings.transport_dtype = s.transport;
}

world::Case make(const MeshCase& m, const Settings& s) {
  world::Case c =
      gradients::make({m.name, m.mesh, m.placements, {}, m.ranks}, s.half, m.partial_grads);
  take(s, c);
  return c;
}

world::Tensors reference(int partial_grads, const Settings& s) {
  world::Case c = gradients::alone(s.half, partial_grads);
  take(s, c);
  return world::run(c).tensors;
}

void check_equal(const MeshCase& m, const Settings& s, const world::Tensors& expected) {
  const world::Case c = make(m, s);
  INFO(m.name << ": " << c.describe());
  const world::Outcome outcome = world::run(c);
  world::check_same(c, outcome, expected);
  for (const StepReport& r : outcome.reports) CHECK(r.planned == gradients::kMatrices);
}

void covering_array(bool half) {
  const auto all = meshes();
  Settings base;
  base.half = half;
  std::map<std::pair<int, DType>, world::Tensors> expected;
  const auto rows = covering::pairwise({static_cast<int>(all.size()), 3, 2, 3, 2}, 11);
  for (size_t i = 0; i < rows.size(); i += kSanitized ? 5 : 1) {
    const auto& row = rows[i];
    const MeshCase& m = all[static_cast<size_t>(row[0])];
    Settings s = base;
    s.window = 1 + row[1];
    s.commit = row[2] ? CommitMode::kEager : CommitMode::kAtomic;
    s.chunk = std::vector<int64_t>{1, 2048, 1 << 20}[static_cast<size_t>(row[3])];
    s.transport = row[4] ? DType::kF32 : DType::kBF16;
    const auto [at, is_new] = expected.try_emplace({m.partial_grads, s.transport});
    if (is_new) {
      Settings of = base;
      of.transport = s.transport;
      at->second = reference(m.partial_grads, of);
    }
    check_equal(m, s, at->second);
  }
}

/// Sets bf16 momentum, and adds a matrix whose parts consist of several runs of rows and columns.
world::Case with_bf16_momentum(world::Case c) {
  c.settings.groups = world::default_groups();
  c.settings.groups[0].momentum_dtype = DType::kBF16;
  c.settings.seed = 20261127;
  for (world::Param& p : c.params) {
    if (p.name != "gate_up") continue;
    const Runs odd = {{0, 3}, {9, 14}}, even = {{3, 9}, {14, 18}};
    p.parts = {{"odd left", odd, {{0, 2}, {5, 7}}, 1.0},
               {"odd middle", odd, {{2, 5}}, 1.0},
               {"even", even, whole(7), 1.0}};
  }
  return c;
}

/// Adds partial gradients in a wrong order: in the order of the messages, which is rank order.
class RankOrder : public wrapped::Ops {
 public:
  RankOrder(muonrt::Ops& inner, size_t partial_grads)
      : wrapped::Ops(inner), partial_grads_(partial_grads) {}
  void accumulate(Stream& s, std::span<const ShardBlock> blocks, float* sums,
                  ConstTypedBuffer message, bool) override {
    lists_.push_back(blocks);
    if (lists_.size() < partial_grads_) return;
    std::sort(lists_.begin(), lists_.end(), [](const auto& a, const auto& b) {
      return a.front().packed_offset < b.front().packed_offset;
    });
    for (size_t i = 0; i < lists_.size(); ++i)
      inner_.accumulate(s, lists_[i], sums, message, i == 0);
    lists_.clear();
  }

 private:
  size_t partial_grads_;
  std::vector<std::span<const ShardBlock>> lists_;
};

world::Tensors in_rank_order(const MeshCase& m) {
  const auto device = [&](const OptimizerSettings& settings) {
    return wrapped::with<RankOrder>(world::host_device(settings),
                                    static_cast<size_t>(m.partial_grads));
  };
  return world::run(make(m, {}), device).tensors;
}

void put(world::Rank& rank, int64_t param, size_t element, float x) {
  std::memcpy(rank.grad(param).data() + element * 4, &x, 4);
}

/// Runs a step in which `spoil` changes gradients of a rank. Checks that the step is skipped and
/// that the report names `param`.
void check_skipped(const MeshCase& m, int64_t param, const std::string& what,
                   const std::function<void(world::Rank&, int)>& spoil) {
  INFO(what);
  world::on_each(make(m, {}), [&](world::Rank& rank, Comm& comm) {
    StepReport report;
    rank.step(0, report);
    rank.fill_gradients(2);
    spoil(rank, comm.rank());
    const world::Ended end = world::attempt_only(rank, 2);
    RANK_CHECK(end.status == Status::kSkipped && end.unchanged);
    RANK_CHECK(end.report.nonfinite_param == param);
    RANK_CHECK(rank.step(2, report) == Status::kOk);
  });
}

}  // namespace

TEST_CASE("partial: f32 sums at the owner are bitwise identical to one rank with the sum",
          "[bits][partial]") {
  covering_array(false);
}

TEST_CASE("partial: bf16 gradients and master weights are bitwise identical to one rank",
          "[bits][partial]") {
  covering_array(true);
}

TEST_CASE("partial: bf16 momentum of owners is bitwise identical, in parts of several runs",
          "[bits][partial]") {
  const auto expected = world::run(with_bf16_momentum(gradients::alone(false, 2))).tensors;
  for (const gradients::Lay& lay : {gradients::Lay{"DDP", {2}, {kP}, {}, {}},
                                    {"rows within", {2, 2}, {kP, shard(0)}, {}, {3, 0, 2, 1}},
                                    {"columns", {2, 2, 2}, {kR, kP, shard(-1)}, {}, {}}}) {
    const world::Case c = with_bf16_momentum(gradients::make(lay, false, 2));
    INFO(lay.name << ": " << c.describe());
    world::check_same(c, world::run(c), expected);
  }
}

TEST_CASE("planted faults: partial gradients added in the order of ranks are detected",
          "[bits][partial]") {
  const MeshCase ordered{"three", 3, {3}, {kP}, {}}, mixed{"mixed", 3, {3}, {kP}, {2, 0, 1}};
  const world::Tensors expected = reference(3, {});
  CHECK((in_rank_order(ordered).params == expected.params));
  CHECK_FALSE((in_rank_order(mixed).params == expected.params));
}

TEST_CASE("partial: a partial gradient or sum that is not finite skips the step and is named",
          "[unit][optimizer][partial]") {
  const MeshCase m{"", 3, {3, 2}, {kP, shard(0)}, {}};
  for (const int64_t param : {0, 7}) {
    check_skipped(m, param, "NaN in one partial gradient", [&](world::Rank& rank, int r) {
      if (r == 2) put(rank, param, 5, std::numeric_limits<float>::quiet_NaN());
    });
    // The two values are finite, but their sum overflows f32.
    check_skipped(m, param, "overflow of the sum", [&](world::Rank& rank, int r) {
      if (r % 2 == 0) put(rank, param, 5, 1.5e38f);
    });
  }
  // The square of the sum overflows f32, so the second moment would not be finite.
  check_skipped(m, 7, "square", [&](world::Rank& rank, int r) {
    if (r % 2 == 0) put(rank, 7, 5, 1e19f);
  });
}

TEST_CASE("partial: with eager commit an overflow of the sum returns TORN",
          "[unit][optimizer][partial]") {
  Settings s;
  s.commit = CommitMode::kEager;
  const auto ends = world::on_each(make({"", 2, {2}, {kP}, {}}, s), [](world::Rank& rank, Comm&) {
    rank.fill_gradients(0);
    put(rank, 0, 5, 3e38f);
    return world::attempt_only(rank, 0);
  });
  for (const world::Ended& end : ends) CHECK(end.status == Status::kTorn);
}

TEST_CASE("partial: owners store the state, and its views have the bytes that the plan states",
          "[unit][partial]") {
  for (const MeshCase& m : meshes()) {
    const world::Case c = make(m, {});
    INFO(m.name);
    world::on_each(c, [&](world::Rank& rank, Comm& comm) {
      int64_t kept = 0;
      for (int64_t p = 0; p < std::ssize(c.params); ++p) {
        const StateView view = rank.optimizer().state(p, StateKind::kMomentum);
        const bool adamw = c.params[static_cast<size_t>(p)].role == Role::kAdamW;
        kept += view.numel * (adamw ? 8 : 4);
        // All parameters except the last one have partial gradients.
        const bool summed = p + 1 < std::ssize(c.params);
        const StateLocation of_sums =
            adamw ? StateLocation::kOwnedSlices : StateLocation::kOwnedMatrices;
        RANK_CHECK(view.location == (summed ? of_sums : StateLocation::kShard));
      }
      const PlanTraffic stated = measure_traffic(rank.optimizer().plan());
      RANK_CHECK(kept == stated.ranks[static_cast<size_t>(comm.rank())].memory.state_bytes);
    });
  }
}

TEST_CASE("partial: a matrix with zero gradients stops changing if owners store its momentum",
          "[unit][optimizer][partial]") {
  for (const DType momentum : {DType::kF32, DType::kBF16}) {
    world::Case c = world::on_mesh({2});
    c.settings.groups = world::default_groups();
    c.settings.groups[0].momentum = 0.1;
    c.settings.groups[0].momentum_dtype = momentum;
    c.settings.groups[0].weight_decay = 0;
    world::add(c, "expert", {6, 10}, {kP}).partial_grads = 2;
    // The momentum starts below 2 and decays to below 2^-126. Each step multiplies it by 0.1, and
    // rounding increases the result by at most a factor of 1 + 2^-7.
    const auto most = static_cast<int64_t>(std::ceil(127 * std::log(2.0) / -std::log(0.101))) + 2;
    INFO(name_of(momentum));
    world::on_each(c, [&](world::Rank& rank, Comm&) {
      StepReport report;
      RANK_CHECK(rank.step(0, report) == Status::kOk && report.zero_matrices == 0);
      std::fill(rank.grad(0).begin(), rank.grad(0).end(), static_cast<unsigned char>(0));
      int64_t step = 1;
      while (report.zero_matrices == 0 && step < most)
        RANK_CHECK(rank.step_only(step++, report) == Status::kOk);
      const auto at_rest = rank.data(0);
      RANK_CHECK(rank.step_only(step, report) == Status::kOk);
      RANK_CHECK(report.zero_matrices == 1 && rank.data(0) == at_rest);
      for (const unsigned char byte : rank.state(0, StateKind::kMomentum)) RANK_CHECK(byte == 0);
    });
  }
}

namespace {

/// A case with a matrix, and with AdamW parameters that may be inactive in a step because of
/// update_every. The embedding and the matrix are optional.
struct Resting {
  std::vector<Placement> placements, grad_placements;
  int window = 3;
  CommitMode commit = CommitMode::kAtomic;

  world::Outcome run(int every, bool embedding, bool matrix) const {
    world::Case c = world::on_mesh({2, 2});
    c.steps = 6;
    c.settings.window = window;
    c.settings.commit = commit;
    c.settings.chunk_bytes = 64;  // gives several chunks
    c.settings.poison = true;
    c.settings.groups = world::default_groups();
    c.settings.groups[1].update_every = every;
    c.params = {world::matrix("without messages", {6}, {kR, kR})};
    if (embedding) {
      c.params.push_back(world::matrix("embedding", {64, 32}, placements));
      c.params.back().grad_placements = grad_placements;
      c.params.back().partial_grads = 2;
    }
    for (world::Param& p : c.params) p.role = Role::kAdamW;
    if (matrix) c.params.push_back(world::matrix("matrix", {24, 60}, {kR, shard(0)}));
    return world::run(c);
  }
};

}  // namespace

TEST_CASE("update_every: parameters that rest exchange nothing", "[unit][optimizer][rules]") {
  const Resting reduced = {{kR, shard(0)}, {}};
  for (Resting one : {reduced,
                      {{kP, kR}, {}},
                      {{kP, shard(0)}, {}},
                      {{kR, shard(0)}, {kP, kR}},
                      {{shard(1), shard(0)}, {kP, shard(1)}}}) {
    for (const auto& [window, commit] :
         {std::pair{3, CommitMode::kAtomic}, {1, CommitMode::kAtomic}, {2, CommitMode::kEager}}) {
      one.window = window;
      one.commit = commit;
      INFO("window " << window << ", commit " << static_cast<int>(commit));
      const auto none = one.run(1, false, false).reports, matrix = one.run(1, false, true).reports,
                 always = one.run(1, true, false).reports;
      for (const int every : {2, 3}) {
        const world::Outcome alone = one.run(every, true, false),
                             mixed = one.run(every, true, true);
        CHECK((alone.tensors == reduced.run(every, true, false).tensors));
        CHECK((mixed.tensors == reduced.run(every, true, true).tensors));
        for (size_t s = 0; s < none.size(); ++s) {
          INFO("update_every " << every << ", step " << s);
          const bool moves = static_cast<int>(s + 1) % every == 0;
          const int64_t extra = always[s].bytes_sent - none[s].bytes_sent;
          const bool assembles = !one.grad_placements.empty() || one.placements[0] == kP;
          CHECK((extra > 0) == assembles);
          CHECK(alone.reports[s].bytes_sent == none[s].bytes_sent + (moves ? extra : 0));
          CHECK(mixed.reports[s].bytes_sent == matrix[s].bytes_sent + (moves ? extra : 0));
        }
      }
    }
  }
}
