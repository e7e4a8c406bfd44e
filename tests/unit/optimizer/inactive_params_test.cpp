#include <algorithm>
#include <catch2/catch.hpp>
#include <tuple>

#include "support/attempts.hpp"
#include "support/check_same.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"

using namespace muonrt;

// Tests parameters that a step lists in `inactive_params`, with the option omit_inactive.

namespace {

constexpr Placement kP{PlacementKind::kPartial, 0, 1}, kR{PlacementKind::kReplicate, 0, 1};
constexpr Placement shard(int dim) { return {PlacementKind::kShard, dim, 1}; }

struct Layouts {
  std::vector<Placement> placements, grad_placements;
};

/// Returns a case with the parameters that `which` selects (matrices and an AdamW parameter), and a
/// parameter without messages. Owners do not depend on `which`, so the bytes of a step depend only
/// on the active parameters.
world::Case make_case(const Layouts& layouts, bool omit, const std::vector<int64_t>& which) {
  world::Case c = world::on_mesh({2, 2});
  c.steps = 6;
  c.settings.omit_inactive = omit;
  c.settings.poison = true;
  c.settings.groups = world::default_groups();
  const world::Param all[] = {world::matrix("w0", {24, 60}, layouts.placements),
                              world::matrix("w1", {24, 60}, layouts.placements),
                              world::matrix("w2", {40, 12}, layouts.placements),
                              world::matrix("embedding", {64, 32}, layouts.placements)};
  for (const int64_t i : which) {
    world::Param& p = c.params.emplace_back(all[i]);
    p.grad_placements = layouts.grad_placements;
    p.partial_grads = 2;
    if (i < 3) p.owner = i == 1 ? 0 : 1;
    if (i == 3) p.role = Role::kAdamW;
  }
  c.params.push_back(world::matrix("without messages", {6}, {kR, kR}));
  c.params.back().role = Role::kAdamW;
  return c;
}

const std::vector<int64_t> kAll = {0, 1, 2, 3};
const std::vector<std::vector<int64_t>> kInactive = {{}, {1}, {0}, {1, 3}, {0, 1, 2, 3}, {2}};

}  // namespace

TEST_CASE("inactive params: with omit_inactive they exchange nothing, with the same bits",
          "[unit][optimizer][rules]") {
  for (const Layouts& layouts : {Layouts{{kR, shard(0)}, {}},
                                 {{shard(1), shard(0)}, {}},
                                 {{kP, kR}, {}},
                                 {{kP, shard(0)}, {}},
                                 {{kR, shard(0)}, {kP, kR}},
                                 {{shard(1), shard(0)}, {kP, shard(1)}}}) {
    world::Case zeros = make_case(layouts, false, kAll);
    zeros.inactive_params = kInactive;
    INFO(zeros.describe());
    const world::Outcome expected = world::run(zeros);
    for (const auto& [chunk_bytes, window, commit] :
         {std::tuple{int64_t{1}, 3, CommitMode::kAtomic},
          {int64_t{1} << 20, 1, CommitMode::kAtomic},
          {int64_t{5000}, 2, CommitMode::kEager}}) {
      const auto with = [&, &bytes = chunk_bytes, &ahead = window, &when = commit](world::Case c) {
        c.settings.chunk_bytes = bytes;
        c.settings.window = ahead;
        c.settings.commit = when;
        return world::run(c);
      };
      world::Case omits = make_case(layouts, true, kAll);
      omits.inactive_params = kInactive;
      const world::Outcome seen = with(omits), all = with(zeros);
      CHECK((seen.tensors == expected.tensors));
      for (size_t s = 2; s < kInactive.size(); ++s) {  // the first steps send additional messages
        INFO("chunk_bytes " << chunk_bytes << ", step " << s);
        // The report counts the bytes that rank 0 sends. Rank 0 owns w1, so it returns the update
        // of w1. It sends its shards of w0 and w2 to rank 1 only if no other rank holds these
        // shards.
        const std::vector<int64_t>& inactive = kInactive[s];
        const bool fewer = std::count(inactive.begin(), inactive.end(), 1) > 0 ||
                           (layouts.grad_placements.empty() && layouts.placements[0] == shard(1));
        CHECK(seen.reports[s].bytes_sent <= all.reports[s].bytes_sent - (fewer ? 1 : 0));
        CHECK(seen.reports[s].orthogonalized == seen.reports[s].planned);
        if (chunk_bytes > 1) continue;  // a chunk then contains several matrices of an owner
        std::vector<int64_t> active;
        for (const int64_t i : kAll)
          if (std::count(inactive.begin(), inactive.end(), i) == 0) active.push_back(i);
        CHECK(seen.reports[s].bytes_sent ==
              with(make_case(layouts, true, active)).reports[s].bytes_sent);
      }
    }
  }
}

TEST_CASE("inactive params: lists that differ between ranks return MISMATCH with omit_inactive",
          "[unit][optimizer][rules]") {
  world::Case c = make_case({{kR, shard(0)}, {}}, true, kAll);
  c.arguments = [](StepArgs& s, int64_t step, int rank) {
    if (step == 1) s.inactive_params = {rank == 3 ? 0 : 1};
  };
  const auto ends = world::on_each(c, [](world::Rank& rank, Comm&) {
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    const world::Ended end = world::attempt(rank, 1);
    RANK_CHECK(rank.step(2, report) == Status::kOk);
    return end;
  });
  for (const world::Ended& end : ends) {
    CHECK(end.status == Status::kMismatch);
    CHECK(end.unchanged);
  }
}
