// Exchanges that share a group, over the fake NCCL and the emulated GPU.

#include <algorithm>
#include <catch2/catch.hpp>

#include "cuda/nccl_ranks.hpp"
#include "support/bits_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

world::Case case_of(size_t mesh, int scheme, int window, bool eager, ExchangeGroups groups) {
  bits::Factors f;
  f.mesh = mesh;
  f.scheme = scheme;
  f.commit = eager;
  f.window = window;
  world::Case c = bits::make(f, false, 2);
  c.settings.groups_of_exchanges = groups;
  return c;
}

int64_t groups_of_rank_0() {
  const auto log = fake_nccl::log(0);
  return std::count_if(log.begin(), log.end(),
                       [](const std::string& line) { return line.rfind("group:", 0) == 0; });
}

}  // namespace

TEST_CASE("nccl groups: two exchanges are one group, in order between two ranks", "[nccl]") {
  std::vector<std::string> logs[3];
  const auto errors = on_nccl(3, kLong, [&](Comm& comm, Machine& machine) {
    const int rank = comm.rank();
    if (!comm.groups_exchanges()) require_none("groups_exchanges");
    // First: 0 -> 1 and 1 -> 0. Then: 0 -> 1 and 2 -> 1, which rank 2 does alone.
    const auto value = [](int from, int turn) { return std::vector<int64_t>{10 * from + turn}; };
    auto* const out_first = machine.put(value(rank, 1));
    auto* const out_second = machine.put(std::vector<int64_t>{10 * rank + 2, 7});
    auto* const in_first = machine.put(std::vector<int64_t>{-1});
    auto* const in_second = machine.put(std::vector<int64_t>{-1, -1});
    auto* const in_third = machine.put(std::vector<int64_t>{-1, -1});
    const SendTo to_1{1, out_first, 8}, to_0{0, out_first, 8}, second{1, out_second, 16};
    const ReceiveFrom from_0{0, in_first, 8}, from_1{1, in_first, 8};
    const ReceiveFrom both[] = {{0, in_second, 16}, {2, in_third, 16}};
    if (rank == 0) comm.exchange_both(machine.on(), {{&to_1, 1}, {&from_1, 1}}, {{&second, 1}, {}});
    if (rank == 1) comm.exchange_both(machine.on(), {{&to_0, 1}, {&from_0, 1}}, {{}, both});
    if (rank == 2) comm.exchange(machine.on(), {&second, 1}, {});
    machine.finish();
    if (rank < 2 && machine.get_one(in_first) != 10 * (1 - rank) + 1) require_none("first");
    if (rank == 1 && machine.get_one(in_second) != 2) require_none("second");
    if (rank == 1 && machine.get_one(in_third) != 22) require_none("third");
    if (comm.exchanges() != (rank == 2 ? 1 : 2)) require_none("exchanges");
    logs[rank] = fake_nccl::log(rank);
    char all[3];
    comm.allgather("", all, 1);
  });
  CHECK(text_of(errors) == "");
  CHECK(logs[0] == std::vector<std::string>{"group: send 1 x 8 receive 1 x 8 send 1 x 16"});
  CHECK(logs[1] ==
        std::vector<std::string>{"group: send 0 x 8 receive 0 x 8 receive 0 x 16 receive 2 x 16"});
  CHECK(logs[2] == std::vector<std::string>{"group: send 1 x 16"});
  check_rules();
}

TEST_CASE("nccl groups: steps whose returns and gathers share groups give the same bits",
          "[nccl]") {
  using enum ExchangeGroups;
  fake_nccl::reset();
  const world::Tensors alone = run_world(case_of(0, 0, 2, false, kApart), plain);
  for (const auto& [mesh, scheme, window, eager] :
       {std::tuple{3, 2, 1, true}, {3, 0, 2, false}, {6, 1, 1, false}, {4, 5, 1, false}}) {
    int64_t groups[2];
    for (const auto how : {kApart, kGrouped}) {
      const world::Case c = case_of(static_cast<size_t>(mesh), scheme, window, eager, how);
      INFO(c.describe());
      fake_nccl::reset();
      CHECK(run_world(c, plain) == alone);
      groups[how == kGrouped] = groups_of_rank_0();
      check_rules();
    }
    CAPTURE(mesh, scheme, window, groups[0], groups[1]);
    CHECK(groups[1] < groups[0]);
  }
}

TEST_CASE("nccl groups: a model of the step decides, from the rates that it is given", "[nccl]") {
  const auto groups = [](ExchangeGroups how, double flops, double message) {
    world::Case c = case_of(3, 0, 2, false, how);
    c.settings.machine_flops = flops;
    c.settings.machine_message = message;
    fake_nccl::reset();
    run_world(c, plain);
    return groups_of_rank_0();
  };
  using enum ExchangeGroups;
  const int64_t apart = groups(kApart, 0, 0), grouped = groups(kGrouped, 0, 0);
  CHECK(grouped < apart);
  CHECK(groups(kAuto, 1, 1e-9) == apart);      // products take for ever
  CHECK(groups(kAuto, 1e30, 1.0) == grouped);  // messages do
}
