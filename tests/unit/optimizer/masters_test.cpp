#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <optional>

#include "support/attempts.hpp"
#include "support/rank_check.hpp"

// Tests callers that write weights after creating the optimizer, or move parameters to other
// memory, on several ranks.

using namespace muonrt;

namespace {

/// Returns a case of matrices and vectors in bf16 with master weights, sharded over `ranks`. With
/// two ranks, it also has a matrix and a vector with partial gradients.
world::Case cut(int ranks) {
  world::Case c = world::on_mesh({ranks});
  const Placement rows{PlacementKind::kShard, 0, 1}, partial_grads{PlacementKind::kPartial, 0, 1};
  world::add(c, "matrix", {7, 5}, {rows});
  world::add(c, "vector", {11}, {rows});
  if (ranks == 2) {
    world::add(c, "summed", {6, 4}, {partial_grads}).partial_grads = ranks;
    world::add(c, "slices", {9}, {partial_grads}).partial_grads = ranks;
  }
  for (world::Param& p : c.params) p.dtype = DType::kBF16;
  c.steps = 2;
  return c;
}

/// Returns the tensors after two steps.
/// @param between  Called on each rank after the optimizer has been created.
world::Tensors after(const world::Case& c, const std::function<void(world::Rank&, int)>& between) {
  return world::tensors_after(c, [&](world::Rank& rank, Comm& comm) {
    between(rank, comm.rank());
    StepReport report;
    for (int64_t step = 0; step < c.steps; ++step)
      RANK_CHECK(rank.step(step, report) == Status::kOk);
  });
}

void write_param(world::Rank& rank, int me, int64_t p) {
  world::for_each_element(rank.layout(p), me, [&](int64_t element, int64_t local) {
    const bf16 x = to_bf16(world::value(p, element, 99));
    std::memcpy(rank.data(p).data() + 2 * local, &x, 2);
  });
}
void write(const world::Case& c, world::Rank& rank, int me) {
  for (int64_t p = 0; p < std::ssize(c.params); ++p) write_param(rank, me, p);
}

}  // namespace

TEST_CASE("masters: reset masters are bitwise identical on any mesh", "[bits][optimizer]") {
  std::optional<world::Tensors> expected;
  for (const int ranks : {1, 3, 4}) {
    const world::Case c = cut(ranks);
    const world::Tensors found = after(c, [&](world::Rank& rank, int me) {
      write(c, rank, me);
      rank.optimizer().reset_masters({0, 1});
    });
    if (!expected) expected = found;
    CHECK((found == *expected));
    CHECK_FALSE((found == after(c, [](world::Rank&, int) {})));
  }
}

TEST_CASE("masters: stale weights of one rank are an error on every rank, which names the rank",
          "[unit][optimizer]") {
  for (const int ranks : {2, 3, 4}) {
    for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
      world::Case c = cut(ranks);
      c.settings.commit = commit;
      for (int64_t p = 0; p < std::ssize(c.params); ++p) {
        for (const int64_t steps : {0, 1}) {  // number of steps before the caller writes weights
          const auto ends = world::on_each(c, [&](world::Rank& rank, Comm& comm) {
            StepReport report;
            for (int64_t s = 0; s < steps; ++s) rank.step(s, report);
            if (comm.rank() == 1) write_param(rank, 1, p);
            return world::attempt(rank, steps);
          });
          for (const world::Ended& end : ends) {
            CHECK(end.status == Status::kInvalidArgument);
            CHECK(end.message == ends[0].message);
            CHECK_THAT(end.message,
                       Catch::Contains("rank 1") &&
                           Catch::Contains("param '" + c.params[static_cast<size_t>(p)].name +
                                           "': local element 0 is "));
          }
        }
      }
    }
  }
}

TEST_CASE("set_data: owner state of partial gradients follows its parameter", "[unit][optimizer]") {
  const world::Case c = cut(2);
  const world::Tensors stayed = after(c, [](world::Rank&, int) {});
  // The caller moves all parameters to other memory, and overwrites the old memory.
  std::array<std::vector<std::vector<unsigned char>>, 2> elsewhere;
  const world::Tensors moved = after(c, [&](world::Rank& rank, int me) {
    auto& mine = elsewhere[static_cast<size_t>(me)];
    for (int64_t p = 0; p < 4; ++p) mine.push_back(rank.data(p));
    for (int64_t p = 0; p < 4; ++p) {
      rank.data(p).swap(mine[static_cast<size_t>(p)]);
      rank.optimizer().set_data(p, rank.data(p).data());
      for (unsigned char& byte : mine[static_cast<size_t>(p)]) byte = 0x55;
    }
  });
  CHECK((moved == stayed));
  for (const auto& rank : elsewhere)
    for (const auto& bytes : rank)
      for (const unsigned char byte : bytes) REQUIRE(byte == 0x55);
}
