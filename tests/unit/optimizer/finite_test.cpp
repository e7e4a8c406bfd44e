#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "optimizer/explain.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"
#include "support/sanitized.hpp"

// Tests that infinities and NaN in weights and state are reported before the next commit,
// regardless of whether a load or a step has written them.

using namespace muonrt;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Stored {
  const char* name;
  DType dtype;
  MasterKind master;
};
const std::vector<Stored> kForms = {{"f32", DType::kF32, MasterKind::kNone},
                                    {"f32, master", DType::kF32, MasterKind::kOwned},
                                    {"bf16", DType::kBF16, MasterKind::kNone},
                                    {"bf16, master", DType::kBF16, MasterKind::kOwned},
                                    {"bf16, remainder", DType::kBF16, MasterKind::kRemainder},
                                    {"bf16, stochastic", DType::kBF16, MasterKind::kStochastic}};

/// Returns a case in which every op that writes weights runs. commit_muon and commit_adamw run for
/// the first two parameters, which are sharded. commit_update, commit_momentum and commit_values
/// run for the parameters with partial gradients.
world::Case case_of(const Stored& form, int ranks) {
  world::Case c = world::on_mesh({ranks});
  const Placement rows{PlacementKind::kShard, 0, 1}, partial_grads{PlacementKind::kPartial, 0, 1};
  world::add(c, "matrix", {7, 5}, {rows}).owner = 0;
  world::add(c, "vector", {11}, {rows});
  if (form.master != MasterKind::kStochastic) {
    world::Param& summed = world::add(c, "summed", {6, 4}, {partial_grads});
    summed.owner = 0;
    summed.partial_grads = ranks;
    world::add(c, "slices", {9}, {partial_grads}).partial_grads = ranks;
  }
  for (world::Param& p : c.params) {
    p.dtype = form.dtype;
    p.master_kind = form.master;
  }
  // The learning rate of the second step is so large that decay makes a weight of 3e38 overflow,
  // but not a weight of 1.
  c.arguments = [](StepArgs& s, int64_t step, int) { s.lr = step == 1 ? 1e10 : 0.02; };
  return c;
}

bool is_sharded(int64_t param) { return param < 2; }

void put(const world::Case& c, world::Rank& rank, int64_t param, float x) {
  const bf16 half = to_bf16(x);
  if (c.params[static_cast<size_t>(param)].dtype == DType::kF32)
    std::memcpy(rank.data(param).data(), &x, 4);
  else
    std::memcpy(rank.data(param).data(), &half, 2);
}

/// Runs a step that must be rejected, and checks that it changes nothing. Returns its message.
std::string rejection_message(world::Rank& rank, int64_t step) {
  const int64_t steps = rank.optimizer().steps();
  const world::Ended end = world::attempt(rank, step);
  RANK_CHECK(end.status == Status::kInvalidArgument && end.unchanged);
  RANK_CHECK(rank.optimizer().steps() == steps);
  return end.message;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Returns whether the message names the parameter, the array with the value and, if there are
/// several ranks, the rank.
bool names(const std::string& messages, const std::string& param, const std::string& what, int rank,
           int ranks) {
  return has(messages, cat("param '", param, "': its ", what, " is not finite")) &&
         (ranks == 1 || has(messages, cat("rank ", rank)));
}

/// Returns the tensors after four steps. If `breaks` is true, the second step makes a weight of
/// `param` infinite, and the test then repairs the weight.
/// @param messages  The message of the rejected step on each rank.
world::Tensors overflow(const world::Case& c, int64_t param, bool breaks,
                        std::vector<std::string>& messages) {
  return world::tensors_after(c, [&](world::Rank& rank, Comm& comm) {
    Optimizer& o = rank.optimizer();
    StepReport report;
    const bool mine = !is_sharded(param) || comm.rank() == c.world - 1;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    if (breaks && mine) put(c, rank, param, 3e38f);
    o.reset_masters({param});
    RANK_CHECK(rank.step(1, report) == Status::kOk);
    RANK_CHECK(o.steps() == 2);
    for (const MatrixHealth& m : o.health().matrices)
      RANK_CHECK(std::isnan(m.weight_rms) == (breaks && m.param == param));
    if (breaks) {
      std::string& once = messages[static_cast<size_t>(comm.rank())];
      once = rejection_message(rank, 2);
      RANK_CHECK(rejection_message(rank, 2) == once);
    }
    if (mine) put(c, rank, param, 0.5f);
    o.reset_masters({param});
    for (const int64_t step : {2, 3}) RANK_CHECK(rank.step(step, report) == Status::kOk);
  });
}

}  // namespace

TEST_CASE("finite: an infinite weight is reported by the next step until it is repaired",
          "[unit][optimizer]") {
  for (size_t i = 0; i < kForms.size(); i += kSanitized ? 3 : 1) {
    const Stored& form = kForms[i];
    for (const int ranks : {1, 3}) {
      if (kSanitized && ranks == 1) continue;
      for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
        world::Case c = case_of(form, ranks);
        c.settings.health_every = 2;
        c.settings.commit = commit;
        for (int64_t param = 0; param < std::ssize(c.params); ++param) {
          const std::string& name = c.params[static_cast<size_t>(param)].name;
          INFO(form.name << ", " << ranks << " ranks, " << name
                         << (commit == CommitMode::kEager ? ", eager" : ""));
          std::vector<std::string> messages(static_cast<size_t>(ranks));
          const world::Tensors whole = overflow(c, param, false, messages);
          CHECK((overflow(c, param, true, messages) == whole));
          INFO(messages[0]);
          CHECK(names(messages[0], name, "data", is_sharded(param) ? ranks - 1 : 0, ranks));
          for (const std::string& s : messages) CHECK(s == messages[0]);
        }
      }
    }
  }
}

TEST_CASE("finite: of several parameters the lowest is named", "[unit][optimizer]") {
  const world::Case c = case_of(kForms[0], 2);
  world::on_each(c, [&](world::Rank& rank, Comm& comm) {
    StepReport report;
    const bool mine = comm.rank() == 1;
    rank.step(0, report);
    for (const int64_t p : {1, 0})
      if (mine) put(c, rank, p, 3e38f);
    RANK_CHECK(rank.step(1, report) == Status::kOk);
    RANK_CHECK(names(rejection_message(rank, 2), "matrix", "data", 1, 2));
    if (mine) put(c, rank, 0, 1.0f);  // needs no reset of master weights
    RANK_CHECK(names(rejection_message(rank, 2), "vector", "data", 1, 2));
    if (mine) put(c, rank, 1, 1.0f);
    RANK_CHECK(rank.step(2, report) == Status::kOk);
  });
}

TEST_CASE("finite: loaded state is checked before the first commit, and again after a reload",
          "[unit][optimizer]") {
  using Held = std::pair<int64_t, StateKind>;
  for (const Stored& form : kForms) {
    for (const int ranks : {1, 3}) {
      world::Case c = case_of(form, ranks);
      c.settings.replica_check = ReplicaCheck::kOff;  // replica checks are tested elsewhere
      c.settings.groups = world::default_groups();
      if (form.master == MasterKind::kNone) c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
      std::vector<Held> held = {
          {0, StateKind::kMomentum}, {1, StateKind::kMomentum}, {1, StateKind::kVariance}};
      if (form.master == MasterKind::kNone) held.push_back({0, StateKind::kNormuon});
      if (form.master == MasterKind::kOwned) held.push_back({0, StateKind::kMaster});
      if (form.master == MasterKind::kRemainder) held.push_back({1, StateKind::kRemainder});
      if (form.master != MasterKind::kStochastic) {
        held.emplace_back(2, StateKind::kMomentum);
        held.emplace_back(3, StateKind::kVariance);
      }
      const world::Tensors untouched = world::run(c).tensors;
      INFO(form.name << ", " << ranks << " ranks");
      const world::Tensors out = world::tensors_after(c, [&](world::Rank& rank, Comm& comm) {
        Optimizer& o = rank.optimizer();
        const auto check = [&](int64_t param, const std::string& what) {
          RANK_CHECK(names(rejection_message(rank, o.steps()),
                           c.params[static_cast<size_t>(param)].name, what, 0, ranks));
        };
        for (int64_t p = 0; p < std::ssize(c.params); ++p) {
          const auto kept = rank.data(p);
          if (comm.rank() == 0) put(c, rank, p, p % 2 ? kNan : -kInf);
          o.reset_masters({p});
          check(p, "data");
          rank.data(p).assign(kept.begin(), kept.end());
          o.reset_masters({p});
        }
        for (const auto& [param, kind] : held) {
          const StateView view = o.state(param, kind);
          const bool low = kind == StateKind::kRemainder;
          // A weight of zero with a remainder of 0x8000 is NaN.
          const float bad = low ? 0.0f : kNan;
          const uint16_t half = 0x8000;
          const bool mine = comm.rank() == 0;
          RANK_CHECK(!mine || view.numel > 0);
          std::array<unsigned char, 4> kept{}, weight{};
          if (mine) {
            std::memcpy(kept.data(), view.data, low ? 2 : 4);
            std::memcpy(weight.data(), rank.data(param).data(), 4);
            if (low) put(c, rank, param, 0.0f);
            std::memcpy(view.data, low ? static_cast<const void*>(&half) : &bad, low ? 2 : 4);
          }
          o.set_steps(o.steps());
          check(param, low ? "data with its remainder" : name_of(kind));
          if (mine) {
            std::memcpy(view.data, kept.data(), low ? 2 : 4);
            std::memcpy(rank.data(param).data(), weight.data(), 4);
          }
        }
        StepReport report;
        for (int64_t step = 0; step < c.steps; ++step)
          RANK_CHECK(rank.step(step, report) == Status::kOk);
      });
      CHECK((out == untouched));
    }
  }
}

TEST_CASE("finite: a momentum beyond bf16's range becomes its largest value", "[unit][optimizer]") {
  world::Case c = case_of(kForms[0], 2);
  c.settings.transport_dtype = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].momentum_dtype = DType::kBF16;
  c.settings.groups[0].momentum_kind = MomentumKind::kHeavyBall;
  c.settings.groups[0].nesterov = false;  // so that the direction is the momentum
  world::on_each(c, [](world::Rank& rank, Comm& comm) {
    StepReport report;
    rank.fill_gradients(0);
    const float above = 3.4e38f;  // finite in f32, but the largest bf16 value is 3.3895e38
    if (comm.rank() == 1) std::memcpy(rank.grad(0).data(), &above, 4);
    RANK_CHECK(rank.step_only(0, report) == Status::kOk);
    uint16_t stored = 0;
    std::memcpy(&stored, rank.optimizer().state(0, StateKind::kMomentum).data, 2);
    RANK_CHECK(comm.rank() != 1 || stored == 0x7f7f);
    RANK_CHECK(rank.step(1, report) == Status::kOk);
  });
}

TEST_CASE("skip: an overflow of the transport dtype is distinguished from NaN",
          "[unit][optimizer]") {
  constexpr float kAbove = 3.4e38f;
  const Placement rows{PlacementKind::kShard, 0, 1}, partial_grads{PlacementKind::kPartial, 0, 1};
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (const DType transport : {DType::kBF16, DType::kF32}) {
      const bool eager = commit == CommitMode::kEager;
      world::Case c = world::on_mesh({2});
      c.settings.commit = commit;
      c.settings.transport_dtype = transport;
      c.settings.groups = world::default_groups();
      c.settings.groups[0].momentum_kind = MomentumKind::kHeavyBall;
      c.settings.groups[0].nesterov = false;  // so that the first direction is the gradient
      c.params = {world::matrix("a", {4, 3}, {rows}), world::matrix("b", {4, 3}, {rows}),
                  world::matrix("sum", {4, 3}, {partial_grads})};
      c.params[2].partial_grads = 2;
      c.params[2].owner = 0;
      struct Planted {
        float a, b, sum;  // values on rank 1
        int64_t param;    // the parameter that is reported, or -1 if the step is committed
        int32_t rank;
        bool overflow;
      };
      const bool half = transport == DType::kBF16;
      // A direction exceeds the range of bf16 on rank 1 or, if the direction is computed from the
      // sum of partial gradients, on the rank that owns the matrix. In some cases the same
      // parameter, or one before or after it, also has a value that is not finite.
      const std::vector<Planted> all = {{kAbove, 1, 1, half ? 0 : -1, 1, half},
                                        {kAbove, kNan, 1, half ? 0 : 1, 1, half},
                                        {kNan, kAbove, 1, 0, 1, false},
                                        {1, 1, kAbove, half ? 2 : -1, 0, half},
                                        {1, 1, kNan, 2, 1, false},
                                        {1, kAbove, kInf, half ? 1 : 2, 1, half}};
      for (const Planted& p : all) {
        INFO(p.a << ", " << p.b << ", " << p.sum << ", " << name_of(transport));
        std::vector<std::string> why(2);
        const auto ends = world::on_each(c, [&](world::Rank& rank, Comm& comm) {
          rank.fill_gradients(0);
          const float values[] = {p.a, p.b, comm.rank() == 1 ? p.sum : 0.0f};
          for (int64_t i = 0; i < 3; ++i)
            if (comm.rank() == 1 || i == 2) std::memcpy(rank.grad(i).data(), values + i, 4);
          const world::Ended end = world::attempt_only(rank, 0);
          why[static_cast<size_t>(comm.rank())] =
              describe_skip(rank.optimizer().settings(), end.report);
          return end;
        });
        // The first vote of an eager step covers the gradients, so it finds a NaN in any parameter.
        if (eager && p.overflow) {
          if (!std::isfinite(p.b) || !std::isfinite(p.sum)) continue;
          for (const world::Ended& end : ends) CHECK(end.status == Status::kTorn);
          CHECK(ends[static_cast<size_t>(p.rank)].says("overflows transport_dtype bf16"));
          continue;
        }
        for (int r = 0; r < 2; ++r) {
          const StepReport& report = ends[static_cast<size_t>(r)].report;
          const std::string& words = why[static_cast<size_t>(r)];
          INFO(words);
          CHECK(report.skipped == (p.param >= 0));
          CHECK(report.transport_overflow == p.overflow);
          CHECK(report.nonfinite_param == p.param);
          if (p.param < 0) continue;
          CHECK(report.nonfinite_rank == p.rank);
          CHECK(has(words, cat("param '", c.params[static_cast<size_t>(p.param)].name, "': ")));
          CHECK(has(words, cat("rank ", p.rank)));
          CHECK(has(words, "overflows transport_dtype bf16") == p.overflow);
        }
      }
    }
  }
}
