#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <limits>

#include "optimizer/agreement.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"

using namespace muonrt;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns a case with three ranks. Rank 2 holds no rows of the first two parameters.
world::Case small_case(CommitMode commit = CommitMode::kAtomic) {
  world::Case c = world::on_mesh({3});
  c.settings.commit = commit;
  c.settings.chunk_bytes = 64;
  const Placement rows{PlacementKind::kShard, 0, 1}, cols{PlacementKind::kShard, 1, 1};
  world::add(c, "a", {4, 6}, {rows});
  world::add(c, "b", {2, 5}, {rows});
  world::add(c, "c", {5, 7}, {cols});
  world::add(c, "d", {4}, {rows});
  return c;
}

void put(world::Rank& rank, int64_t param, int64_t element, float x) {
  std::memcpy(rank.grad(param).data() + 4 * element, &x, 4);
}

/// For each rank, writes a non-finite value to every `stride`-th position in turn, and checks that
/// each of these steps is skipped.
void skip_everywhere(const world::Case& c, world::Rank& rank, Comm& comm, int64_t stride) {
  constexpr float kInvalidArg[] = {kNan, kInf, -kInf};
  StepReport report;
  RANK_CHECK(rank.step(0, report) == Status::kOk);
  int64_t position = 0;
  for (int bad_rank = 0; bad_rank < c.world; ++bad_rank) {
    for (int64_t p = 0; p < std::ssize(c.params); ++p) {
      for (int64_t e = 0; e < rank.layout(p).local_numel(bad_rank); e += stride, ++position) {
        rank.fill_gradients(1);
        if (comm.rank() == bad_rank) put(rank, p, e, kInvalidArg[position % 3]);
        const world::Ended end = world::attempt_only(rank, 1);
        if (end.status != Status::kSkipped || !end.unchanged || end.report.step != 1 ||
            end.report.nonfinite_rank != bad_rank || end.report.nonfinite_param != p) {
          RANK_FAIL(cat("rank ", comm.rank(), ", bad rank ", bad_rank, ", param ", p, " at ", e,
                        ": status ", static_cast<int>(end.status), ", reported rank ",
                        end.report.nonfinite_rank, " param ", end.report.nonfinite_param));
        }
      }
    }
  }
  // A skipped step has no effect on the next step.
  RANK_CHECK(rank.step(1, report) == Status::kOk);
  RANK_CHECK(report.step == 2);
}

}  // namespace

TEST_CASE("skip: a NaN or infinity at any position skips the step on all ranks and changes nothing",
          "[unit][optimizer][tsan]") {
  for (const bool replicated : {false, true}) {  // replicated parameters are not gathered
    for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
      world::Case c = small_case(commit);
      c.steps = 2;
      for (auto& p : c.params)
        if (replicated) p.placements = {{PlacementKind::kReplicate, 0, 1}};
      const int64_t stride = replicated ? 11 : 1;
      const world::Tensors after = world::tensors_after(
          c, [&](world::Rank& rank, Comm& comm) { skip_everywhere(c, rank, comm, stride); });
      CHECK((after == world::run(c).tensors));
    }
  }
}

TEST_CASE("skip: a gradient that only its scale, or the square in AdamW's variance, makes infinite",
          "[unit][optimizer]") {
  struct Row {
    int64_t param;
    float gradient;
    double scale;
    bool skipped;
  };
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (const Row& row : {Row{0, 1e30f, 1e10, true},
                           {3, 1e30f, 1e10, true},
                           {3, 1e30f, 1, true},
                           {3, 1e18f, 1, false}}) {
      INFO("param " << row.param << ", " << row.gradient << " x " << row.scale);
      world::Case c = small_case(commit);
      c.arguments = [&](StepArgs& s, int64_t, int) { s.grad_scale_inv = row.scale; };
      const auto ends = world::on_each(c, [&](world::Rank& rank, Comm& comm) {
        rank.fill_gradients(0);
        if (comm.rank() == 1) put(rank, row.param, 0, row.gradient);
        return world::attempt_only(rank, 0);
      });
      for (const world::Ended& end : ends) {
        CHECK(end.status == (row.skipped ? Status::kSkipped : Status::kOk));
        CHECK(end.unchanged == row.skipped);
        CHECK(end.report.nonfinite_param == (row.skipped ? row.param : -1));
      }
    }
  }
}

TEST_CASE("skip: inactive parameters and their state do not change", "[unit][optimizer]") {
  world::Case c = small_case();
  c.inactive_params = {{}, {0, 3}};
  world::on_each(c, [&](world::Rank& rank, Comm&) {
    StepReport report;
    rank.step(0, report);
    const world::Tensors before = rank.tensors();
    rank.fill_gradients(1);
    // The gradient of an inactive parameter is not read, so NaN has no effect.
    std::ranges::fill(rank.grad(0), static_cast<unsigned char>(0xff));
    rank.optimizer().set_grad(3, nullptr);
    RANK_CHECK(rank.step_only(1, report) == Status::kOk);
    RANK_CHECK(report.orthogonalized == 3);
    const world::Tensors after = rank.tensors();
    for (const size_t p : {0, 3}) {
      RANK_CHECK(after.params[p] == before.params[p]);
      RANK_CHECK(after.momentum[p] == before.momentum[p]);
      RANK_CHECK(after.variance[p] == before.variance[p]);
    }
    RANK_CHECK(after.params[2] != before.params[2]);
  });
}

TEST_CASE("step: later steps allocate nothing, and at most `window` chunks are resident",
          "[unit][optimizer]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (const int window : {1, 2}) {
      world::Case c = small_case(commit);
      c.settings.threads = 2;
      c.settings.window = window;
      c.settings.chunk_bytes = 1;  // gives each matrix of an owner its own chunk
      for (const char* name : {"e", "f", "g", "h", "i", "j"})
        world::add(c, name, {4, 6}, {{PlacementKind::kShard, 0, 1}});
      world::on_each(c, [&](world::Rank& rank, Comm&) {
        StepReport report;
        rank.step(0, report);
        const Device& device = rank.optimizer().device();
        const int64_t allocations = device.allocations(), objects = device.objects();
        RANK_CHECK(allocations > 0 && objects > 0);
        for (int step = 1; step < 6; ++step) rank.step(step, report);
        RANK_CHECK(device.allocations() == allocations);
        RANK_CHECK(device.objects() == objects);
        RANK_CHECK(rank.optimizer().plan().chunks().size() >= 2);
        RANK_CHECK(rank.optimizer().pipeline().resident_peak() == window);
      });
    }
  }
}

TEST_CASE("optimizer: two in one process, over one communicator, destroyed in either order",
          "[unit][optimizer]") {
  for (const bool first_goes_first : {true, false}) {
    const world::Case c = small_case();
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
  const world::Case c = small_case();
  world::on_each(c, [](world::Rank& rank, Comm&) {
    StepReport report;
    rank.step(0, report);
    GroupSettings g = GroupSettings::defaults(Role::kMuon);
    g.lr_factor = 0.0;
    rank.optimizer().set_group(0, g);
    const auto before = rank.data(2);
    rank.step(1, report);
    RANK_CHECK(rank.data(2) == before);  // a learning rate of 0 without decay changes nothing
    std::vector<GroupSettings> others(5, g);
    others[0].steps = 4;
    others[1].name = "other";
    others[2].iteration_dtype = DType::kBF16;
    others[3].normuon_axis = NormuonAxis::kRows;
    others[4].scale_factor = 0.5;
    const char* const says[] = {
        ": steps is 4, but 5 at creation, and it cannot change", "name is 'other', but '",
        ": iteration_dtype is bf16, but the optimizer's at creation",
        ": normuon_axis is rows, but off at creation", ": scale_factor is 0.5, but 1 at creation"};
    for (size_t i = 0; i < others.size(); ++i) {
      const auto error = capture_error([&] { rank.optimizer().set_group(0, others[i]); });
      RANK_CHECK(error && error->message().find(says[i]) != std::string::npos);
    }
    g.momentum = 1.0;
    RANK_CHECK_THROWS_AS(rank.optimizer().set_group(0, g), Error);
  });
  // If only one rank changes the settings, all ranks reject the next step, and nothing changes.
  world::on_each(c, [](world::Rank& rank, Comm& comm) {
    StepReport report;
    rank.step(0, report);
    GroupSettings g = GroupSettings::defaults(Role::kMuon);
    if (comm.rank() == 1) g.momentum = 0.5;
    rank.optimizer().set_group(0, g);
    const world::Ended end = world::attempt(rank, 1);
    RANK_CHECK(end.status == Status::kMismatch && end.unchanged);
    RANK_CHECK(end.says("group 0: momentum is 0.95 on rank 0 and 0.5 on rank 1"));
    rank.optimizer().set_group(0, GroupSettings::defaults(Role::kMuon));
    RANK_CHECK(rank.step(1, report) == Status::kOk);
  });
}
