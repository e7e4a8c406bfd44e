#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "optimizer/agreement.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"

using namespace muonrt;

namespace {

// Three ranks; rank 2 has no rows of the first two parameters.
world::Case small_case(CommitMode commit) {
  world::Case c;
  c.mesh = {3};
  c.world = 3;
  c.settings.commit = commit;
  c.settings.chunk_bytes = 64;
  const auto add = [&](const char* name, std::vector<int64_t> shape, Role role, int dim) {
    world::Param p;
    p.name = name;
    p.shape = std::move(shape);
    p.role = role;
    p.placements = {{PlacementKind::kShard, dim, 1}};
    c.params.push_back(p);
  };
  add("a", {4, 6}, Role::kMuon, 0);
  add("b", {2, 5}, Role::kMuon, 0);
  add("c", {5, 7}, Role::kMuon, 1);
  add("d", {4}, Role::kAdamW, 0);
  return c;
}

struct Snapshot {
  std::vector<std::vector<unsigned char>> bytes;
  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(const world::Case& c, world::Rank& rank) {
  Snapshot s;
  for (size_t i = 0; i < c.params.size(); ++i) {
    const auto p = static_cast<int64_t>(i);
    s.bytes.push_back(rank.data(p));
    s.bytes.push_back(rank.state(p, StateKind::kMomentum));
    if (c.params[i].role == Role::kAdamW) s.bytes.push_back(rank.state(p, StateKind::kVariance));
  }
  return s;
}

}  // namespace

TEST_CASE("skip: a NaN or infinity at any position skips the step everywhere and changes no byte",
          "[unit][optimizer][tsan]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    const world::Case c = small_case(commit);
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      RANK_CHECK(rank.step(0, report) == Status::kOk);
      const Snapshot before = snapshot(c, rank);
      int64_t position = 0;
      for (int bad_rank = 0; bad_rank < c.world; ++bad_rank) {
        for (size_t p = 0; p < c.params.size(); ++p) {
          const int64_t count = rank.layout(static_cast<int64_t>(p)).local_numel(bad_rank);
          for (int64_t e = 0; e < count; ++e, ++position) {
            rank.fill_gradients(1);
            if (comm.rank() == bad_rank) {
              const float bad = position % 3 == 0   ? std::numeric_limits<float>::quiet_NaN()
                                : position % 3 == 1 ? std::numeric_limits<float>::infinity()
                                                    : -std::numeric_limits<float>::infinity();
              std::memcpy(rank.grad(static_cast<int64_t>(p)).data() + 4 * e, &bad, 4);
            }
            const Status status = rank.step_only(1, report);
            if (status != Status::kSkipped || !(snapshot(c, rank) == before) ||
                report.nonfinite_rank != bad_rank ||
                report.nonfinite_param != static_cast<int64_t>(p) || report.step != 1) {
              RANK_FAIL(cat("rank ", comm.rank(), ", bad rank ", bad_rank, ", param ", p, " at ", e,
                            ": status ", static_cast<int>(status), ", reported rank ",
                            report.nonfinite_rank, " param ", report.nonfinite_param));
            }
          }
        }
      }
      // A skipped step counts for nothing: what follows is what would have followed.
      RANK_CHECK(rank.step(1, report) == Status::kOk);
      RANK_CHECK(report.step == 2);
    });
    world::Case plain = c;
    plain.steps = 2;
    const auto expected = world::run(plain).tensors;
    world::Tensors got;
    std::vector<std::vector<bool>> seen;
    std::mutex mutex;
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      rank.step(0, report);
      rank.fill_gradients(1);
      if (comm.rank() == 1) std::ranges::fill(rank.grad(3), static_cast<unsigned char>(0xff));
      rank.step_only(1, report);
      rank.step(1, report);
      const std::lock_guard lock(mutex);
      rank.add_to(got, seen);
    });
    CHECK(got == expected);
  }
}

TEST_CASE("skip: a gradient that only its scale, or the square in AdamW's variance, makes infinite",
          "[unit][optimizer]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    const world::Case c = small_case(commit);
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      rank.step(0, report);
      const Snapshot before = snapshot(c, rank);
      const auto attempt = [&](int64_t param, float gradient, double scale) {
        rank.fill_gradients(1);
        if (comm.rank() == 1) std::memcpy(rank.grad(param).data(), &gradient, 4);
        return rank.optimizer().step(
            [&] {
              StepSettings s;
              s.lr = c.lr;
              s.grad_scale_inv = scale;
              return s;
            },
            report);
      };
      RANK_CHECK(attempt(0, 1e30f, 1e10) == Status::kSkipped);
      RANK_CHECK(report.nonfinite_param == 0);
      RANK_CHECK(attempt(3, 1e30f, 1e10) == Status::kSkipped);
      RANK_CHECK(report.nonfinite_param == 3);
      RANK_CHECK(attempt(3, 1e30f, 1.0) == Status::kSkipped);
      RANK_CHECK(snapshot(c, rank) == before);
      RANK_CHECK(attempt(3, 1e18f, 1.0) == Status::kOk);
    });
  }
}

TEST_CASE("skip: a NaN in a replica that is not gathered skips the step everywhere",
          "[unit][optimizer]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    world::Case c = small_case(commit);
    for (auto& p : c.params) p.placements = {{PlacementKind::kReplicate, 0, 1}};
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      rank.step(0, report);
      const Snapshot before = snapshot(c, rank);
      for (int bad_rank = 0; bad_rank < c.world; ++bad_rank) {
        for (int64_t p = 0; p < 4; ++p) {
          rank.fill_gradients(1);
          if (comm.rank() == bad_rank) std::memset(rank.grad(p).data() + 4, 0xff, 4);
          RANK_CHECK(rank.step_only(1, report) == Status::kSkipped);
          RANK_CHECK(report.nonfinite_rank == bad_rank);
          RANK_CHECK(report.nonfinite_param == p);
          RANK_CHECK(snapshot(c, rank) == before);
        }
      }
    });
  }
}

TEST_CASE("skip: parameters announced without a gradient sit out, state and all",
          "[unit][optimizer]") {
  world::Case c = small_case(CommitMode::kAtomic);
  c.without_grad = {{}, {0, 3}};
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    const Snapshot before = snapshot(c, rank);
    rank.fill_gradients(1);
    // What is announced is not read, whatever lies there.
    std::ranges::fill(rank.grad(0), static_cast<unsigned char>(0xff));
    rank.optimizer().set_grad(3, nullptr);
    RANK_CHECK(rank.step_only(1, report) == Status::kOk);
    RANK_CHECK(report.orthogonalized == 3);
    const Snapshot after = snapshot(c, rank);
    RANK_CHECK(after.bytes[0] == before.bytes[0]);
    RANK_CHECK(after.bytes[1] == before.bytes[1]);
    for (size_t i = 6; i < 9; ++i) RANK_CHECK(after.bytes[i] == before.bytes[i]);
    if (!before.bytes[4].empty()) RANK_CHECK(!(after.bytes[4] == before.bytes[4]));
  });
}

TEST_CASE("step: after the first it takes no memory and makes no object", "[unit][optimizer]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    world::Case c = small_case(commit);
    c.settings.threads = 2;
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      rank.step(0, report);
      const Device& device = rank.optimizer().device();
      const int64_t allocations = device.allocations(), objects = device.objects();
      RANK_CHECK(allocations > 0);
      RANK_CHECK(objects > 0);
      for (int step = 1; step < 6; ++step) rank.step(step, report);
      RANK_CHECK(device.allocations() == allocations);
      RANK_CHECK(device.objects() == objects);
    });
  }
}

TEST_CASE("step: exactly W chunks are resident at the peak, W = 1 to 8", "[unit][optimizer]") {
  for (int window = 1; window <= 8; ++window) {
    world::Case c;
    c.mesh = {2};
    c.world = 2;
    c.settings.window = window;
    c.settings.chunk_bytes = 2 * 16;
    for (int i = 0; i < 20; ++i) {
      world::Param p;
      p.name = cat("w", i);
      p.shape = {4, 4};
      p.placements = {{PlacementKind::kShard, 0, 1}};
      c.params.push_back(p);
    }
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      StepReport report;
      rank.step(0, report);
      RANK_CHECK(rank.optimizer().plan().slots().size() == 10);
      RANK_CHECK(rank.optimizer().pipeline().resident_peak() == window);
    });
  }
}

TEST_CASE("optimizer: two in one process, over one communicator, destroyed in either order",
          "[unit][optimizer]") {
  for (const bool first_goes_first : {true, false}) {
    const world::Case c = small_case(CommitMode::kAtomic);
    world::on_ranks(c.world, [&](Comm& comm) {
      auto a = std::make_unique<world::Rank>(c, comm);
      auto b = std::make_unique<world::Rank>(c, comm);
      StepReport report;
      a->step(0, report);
      b->step(0, report);
      a->step(1, report);
      (first_goes_first ? a : b).reset();
      world::Rank& left = first_goes_first ? *b : *a;
      RANK_CHECK(left.step(2, report) == Status::kOk);
    });
  }
}

TEST_CASE("optimizer: settings of a group may change between steps", "[unit][optimizer]") {
  const world::Case c = small_case(CommitMode::kAtomic);
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    GroupSettings g = GroupSettings::defaults(Role::kMuon);
    g.lr_factor = 0.0;
    rank.optimizer().set_group(0, g);
    const auto before = rank.data(2);
    rank.step(1, report);
    RANK_CHECK(rank.data(2) == before);  // no rate, no change, decay included
    const auto refused = [&](const GroupSettings& changed, const std::string& text) {
      const auto error = error_of([&] { rank.optimizer().set_group(0, changed); });
      RANK_CHECK(error && error->message().find(text) != std::string::npos);
    };
    GroupSettings other = g;
    other.steps = 4;
    refused(other, ": steps is 4, but 5 at creation (it is fixed)");
    other = g;
    other.name = "other";
    refused(other, "name is 'other', but '");
    other = g;
    other.iteration = DType::kBF16;
    refused(other, ": iteration_dtype is bf16, but the optimizer's at creation");
    other = g;
    other.normuon = NormuonAxis::kRows;
    refused(other, ": normuon is rows, but off at creation");
    other = g;
    other.scale_factor = 0.5;
    refused(other, ": scale_factor is 0.5, but 1 at creation");
    g.momentum = 1.0;
    RANK_CHECK_THROWS_AS(rank.optimizer().set_group(0, g), Error);
  });
  // A change on one rank alone is refused by all, with nothing changed.
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    const Snapshot before = snapshot(c, rank);
    GroupSettings g = GroupSettings::defaults(Role::kMuon);
    if (comm.rank() == 1) g.momentum = 0.5;
    rank.optimizer().set_group(0, g);
    try {
      rank.step(1, report);
      RANK_FAIL("the step was accepted");
    } catch (const Error& e) {
      RANK_CHECK(e.status() == Status::kMismatch);
      RANK_CHECK(e.message().find("group 0: momentum is 0.95 on rank 0 and 0.5 on rank 1") !=
                 std::string::npos);
    }
    RANK_CHECK(snapshot(c, rank) == before);
    rank.optimizer().set_group(0, GroupSettings::defaults(Role::kMuon));
    RANK_CHECK(rank.step(1, report) == Status::kOk);
  });
}

TEST_CASE("adamw: betas close to one and a zero eps follow the formula in f32",
          "[unit][optimizer]") {
  world::Case c;
  c.steps = 1;
  c.lr = 0.001;
  world::Param p;
  p.name = "b";
  p.shape = {3};
  p.role = Role::kAdamW;
  c.params = {p};
  c.settings.groups = world::default_groups();
  c.settings.groups[1].beta2 = 0.99999;
  c.settings.groups[1].eps = 0.0;
  c.settings.groups[1].weight_decay = 0.0;
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    rank.fill_gradients(0);
    std::memset(rank.grad(0).data(), 0, 4);  // an element that never had a gradient
    StepReport report;
    rank.step_only(0, report);
    for (int64_t e = 0; e < 3; ++e) {
      float w;
      std::memcpy(&w, rank.data(0).data() + 4 * e, 4);
      // A first step moves by the rate, against the gradient's sign (not at all without one).
      const float g = e == 0 ? 0.0f : world::value(0, e, 0);
      const double sign = g > 0 ? 1 : g < 0 ? -1 : 0;
      CHECK(w == Approx(world::value(0, e, -1) - 0.001 * sign).epsilon(1e-6));
    }
  });
}
