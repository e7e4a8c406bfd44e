#include <malloc.h>

#include <catch2/catch.hpp>
#include <functional>

#include "base/json_value.hpp"
#include "plan/report/report.hpp"
#include "plan/report/traffic.hpp"
#include "support/plan_memory.hpp"
#include "unit/plan/plan_cases.hpp"

using namespace muonrt;
using plan_case::mesh;
using plan_case::muon;
using plan_case::pick;
using plan_case::placed;

namespace {

const Placement kR{PlacementKind::kReplicate, 0, 1}, kP{PlacementKind::kPartial, 0, 1};

Problem example() {
  Problem p;
  const auto on = mesh({2, 2});
  plan_case::add(p, muon("wide", on, {8, 64}, 1));
  plan_case::add(p, muon("experts", on, {4, 32, 40}, 0));
  plan_case::add(p, muon("gate", on, {12, 1}, 1));
  plan_case::add(p, muon("bias", on, {10}, 1));
  p.params.back().role = Role::kAdamW;
  p.options.chunk_bytes = 2000;
  return p;
}

/// Returns a problem that also contains AdamW parameters and half precision.
Problem random_mix() {
  Problem out = plan_case::random_problem(6, true);
  for (ParamSpec& spec : out.params) {
    if (pick(0, 3) == 0) spec.role = Role::kAdamW;
    if (spec.role == Role::kMuon) spec.owner_bytes = 100 * pick(0, 2);
    if (pick(0, 3) == 0) spec.dtype = DType::kBF16;
    if (pick(0, 3) == 0) spec.grad_dtype = DType::kBF16;
    spec.master = pick(0, 3) == 0;
  }
  return out;
}

int64_t bytes_to_others(int rank, std::initializer_list<const std::vector<Region>*> lists) {
  int64_t out = 0;
  for (const auto* list : lists)
    for (const Region& region : *list) out += region.peer == rank ? 0 : region.bytes;
  return out;
}

}  // namespace

TEST_CASE("traffic: measure_traffic equals the sum over the block lists of every rank",
          "[unit][plan][property]") {
  CHECK(rc::check("random layouts", [] {
    const Plan plan(random_mix());
    const PlanTraffic traffic = measure_traffic(plan);
    int64_t all_sent = 0;
    for (int r = 0; r < plan.problem().options.world; ++r) {
      int64_t sent = 0, received = 0, owned = 0;
      const auto chunks = plan.rank_chunks(r);
      for (const RankChunk& s : chunks) {
        sent += bytes_to_others(r, {&s.gather_sends, &s.return_sends, &s.relay_sends});
        received += bytes_to_others(r, {&s.gather_receives, &s.return_receives, &s.relay_receives});
        owned += std::ssize(s.owned);
      }
      const RankTraffic& got = traffic.ranks[static_cast<size_t>(r)];
      RC_ASSERT(got.sent == sent);
      RC_ASSERT(got.received == received);
      RC_ASSERT(got.owned == owned);
      RC_ASSERT(got.chunks == std::ssize(chunks));
      const MemoryPlan memory = memory_of(plan, r);
      RC_ASSERT(got.memory.message_bytes == memory.message_bytes);
      RC_ASSERT(got.memory.staged_bytes == memory.staged_bytes);
      RC_ASSERT(got.memory.state_bytes == memory.state_bytes);
      all_sent += sent;
    }
    RC_ASSERT(std::accumulate(traffic.moved.begin(), traffic.moved.end(), int64_t{0}) ==
              traffic.moved_total);
    // Forwarded regions have gaps between their messages.
    const bool relayed = std::any_of(plan.chunks().begin(), plan.chunks().end(),
                                     [](const ChunkSpec& s) { return s.relay > 0; });
    if (relayed) RC_ASSERT(all_sent >= traffic.moved_total);
    if (!relayed) RC_ASSERT(all_sent == traffic.moved_total);
  }));
}

// The next case needs glibc's count of heap bytes, which sanitizers do not provide.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("plan: memory does not grow with the product of ranks and shapes", "[unit][plan]") {
  const auto on = mesh({512, 128});
  const auto heap = [] {
    const auto info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  const auto bytes = [&](int64_t count) {
    Problem p;
    p.options.world = 65536;
    for (int64_t i = 0; i < count; ++i) {
      p.params.push_back(muon(cat("stack", i), on, {128, 16, 16 + i}, 1));
      p.params.push_back(muon(cat("matrix", i), on, {300 + i, 16}, 1));
    }
    const int64_t before = heap();
    const Plan plan(std::move(p));
    return heap() - before;
  };
  // Each iteration adds 129 matrices of about 300 bytes each. One byte per rank would add 64 KiB
  // more.
  CHECK(bytes(12) - bytes(2) < 10 * 65536);
}
#endif

TEST_CASE("plan: memory by kind, computed by hand", "[unit][plan]") {
  // Two bf16 matrices of 8 x 4 are cut in half, and each of two ranks owns one matrix. In the
  // gather and in the return, a rank sends and receives 2 messages of 4 x 4 x 2 = 32 bytes (64 with
  // alignment). One of the two messages is to the rank itself and needs no space in the send
  // buffer.
  Problem p;
  const auto on = mesh({2});
  for (const char* name : {"a", "b"}) plan_case::add(p, muon(name, on, {8, 4}));
  plan_case::add(p, muon("bias", on, {10}));
  p.params[2].role = Role::kAdamW;
  const auto memory = [&](size_t rank) { return measure_traffic(Plan(p)).ranks[rank].memory; };
  CHECK(memory(0).message_bytes == 64 + 128 + 64);  // one chunk: gather sends and receives, return
  CHECK(memory(0).staged_bytes == 128);
  CHECK(memory(0).state_bytes == 2 * 16 * 4 + 5 * 8);
  p.options.commit = CommitMode::kEager;
  CHECK(memory(0).message_bytes == 64 + 128 + 64 + 128);
  CHECK(memory(0).staged_bytes == 0);
  // Rank 0 owns both matrices. Each chunk has one matrix, and two chunks are in flight. Per chunk,
  // rank 1 only sends 64 bytes and receives 64 bytes. Rank 0 sends nothing to rank 1 in the gather,
  // and 64 bytes in the return.
  for (size_t i = 0; i < 2; ++i) p.params[i].owner = 0;
  p.options.chunk_bytes = 1;
  CHECK(memory(1).message_bytes == 2 * (64 + 64));
  CHECK(memory(0).message_bytes == 2 * (128 + 64 + 64));
  p.options.window = 1;
  CHECK(memory(1).message_bytes == 64 + 64);
}

TEST_CASE("partial: AdamW moments are distributed over all holders", "[unit][plan][partial]") {
  const auto on = mesh({2, 4});
  Problem p;
  plan_case::add(p, placed("embedding", on, {800, 10}, {kR, kP}, Role::kAdamW));
  // Each rank sends its partial gradients of the slices that the other ranks of its replica own,
  // and sends the new values of its own slice to all other ranks.
  for (const RankTraffic& r : measure_traffic(Plan(p)).ranks) {
    CHECK(r.memory.state_bytes == 1000 * 8);
    CHECK(r.sent == 3 * 4000 + 7 * 4000);
  }
}

TEST_CASE("gradient layouts: ZeRO-1 keeps the moments once in the world", "[unit][plan]") {
  const auto on = mesh({4});
  Problem p;
  plan_case::add(p, placed("embedding", on, {80, 10}, {kR}, Role::kAdamW));
  const auto cut = [&](int dim) {
    return placed("", on, {80, 10}, {{PlacementKind::kShard, dim, 1}}).layout;
  };
  p.params[0].grad_layout = cut(0);
  const Plan plan(p);
  CHECK(plan.describe().find("R over d0=4; gradient S(0) over d0=4") != std::string::npos);
  for (const RankTraffic& rank : measure_traffic(plan).ranks) {
    CHECK(rank.memory.state_bytes == 200 * 8);
    // The slices are the rows of the gradient, so no gradients are sent. New values are sent to
    // three ranks.
    CHECK(rank.sent == 3 * 200 * 4);
  }
  p.params[0].grad_layout = cut(1);
  CHECK(Plan(p).hash() != plan.hash());
}

TEST_CASE("describe: the text has a row for every parameter, chunk and rank", "[unit][plan]") {
  const Plan plan(example());
  const std::string text = plan.describe();
  INFO(text);
  const auto lines_with = [&](const std::string& word) {
    int count = 0;
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      count += text.substr(begin, end - begin).find(word) != std::string::npos;
    return count;
  };
  CHECK(lines_with("wide ") == 1);
  CHECK(lines_with("8 x 64") == 1);
  CHECK(lines_with("4 x 32 x 40") == 1);
  CHECK(lines_with("adamw") == 1);
  CHECK(lines_with("S(0) over d1=2, R over d0=2") == 3);
  CHECK(lines_with("4 ranks; 6 matrices of 3 Muon parameters, 1 AdamW parameters") == 1);
  CHECK(lines_with("warning: param 'gate'") == 1);
  CHECK(lines_with("warning: param 'experts'") == 1);  // 2560 bytes each; chunk_bytes is 2000
  CHECK(text.find(hash_text(plan)) != std::string::npos);
  CHECK(text.find(" \n") == std::string::npos);
  CHECK(plan.describe(1).find("... 3 more\n") != std::string::npos);  // of parameters and of ranks
}

TEST_CASE("report: round-robin owners for comparison, computed by hand", "[unit][plan]") {
  // Round-robin assignment in the order of size gives rank 0 the first and the third matrix, and
  // rank 1 the second one. The planner instead assigns the two smaller matrices to the same rank.
  Problem p;
  const auto on = mesh({2});
  for (const auto& [name, side] : {std::pair("a", 640), {"b", 512}, {"c", 512}})
    plan_case::add(p, muon(name, on, {side, side}));
  const Plan plan(p);
  const auto cost = [&](size_t m) { return plan.matrices()[m].cost; };
  CHECK(plan.makespan() == std::max(cost(0), 2 * cost(1)));
  CHECK(report_on(plan).round_robin == (cost(0) + cost(2)) / plan.lower_bound());
  CHECK(plan.describe().find("of round-robin owners ") != std::string::npos);
}

TEST_CASE("report: the traffic that overlaps with products", "[unit][plan]") {
  // Each of two ranks owns three of six 192 x 192 matrices, in one, two or three chunks. Half of
  // each matrix is sent in each direction, in bf16. The first gather and the last return never
  // overlap with products.
  Problem p;
  const auto on = mesh({2});
  for (const char* name : {"a", "b", "c", "d", "e", "f"})
    plan_case::add(p, muon(name, on, {192, 192}));
  const int64_t exchange = 2 * 192 * 192;  // 2 matrices, a half each, 2 bytes per element
  const struct {
    int window;
    int64_t hidden;  // number of hidden exchanges, out of six
    int warnings;
  } table[] = {{1, 0, 1}, {2, 3, 0}, {3, 4, 0}, {64, 4, 0}};
  for (const auto& row : table) {
    p.options.window = row.window;
    const PlanReport report = report_on(Plan(p));
    INFO("window " << row.window << ": " << report.hidden_bytes);
    CHECK(report.traffic.moved_total == 6 * exchange);
    CHECK(report.hidden_bytes == row.hidden * exchange);
    CHECK(std::ssize(report.warnings) == row.warnings);
  }
}

TEST_CASE("describe: JSON is well formed and agrees with the plan", "[unit][plan]") {
  Problem p = example();
  p.params[0].name = "quote \" back \\ tab \t";
  const Plan plan(p);
  const JsonValue json = parse_json(plan.json(), "the plan");
  const auto list = [&](const char* key) { return *json.find(key)->as<JsonValue::List>(); };
  const auto total = [&](const char* key) {
    const JsonValue& value = *json.find("total")->find(key);
    const int64_t* const whole = value.as<int64_t>();
    return whole ? static_cast<double>(*whole) : *value.as<double>();
  };
  CHECK(*json.find("hash")->as<std::string>() == hash_text(plan));
  CHECK(*list("params")[0].find("name")->as<std::string>() == p.params[0].name);
  CHECK(list("params").size() == 4);
  CHECK(list("ranks").size() == 4);
  CHECK(list("chunks").size() == plan.chunks().size());
  CHECK(list("warnings").size() >= 2);
  CHECK(total("matrices") == 6);
  CHECK(total("makespan_cost") == plan.makespan());
  std::vector<int64_t> owners, expected;
  for (const JsonValue& param : list("params")) {
    for (const JsonValue& owner : *param.find("owners")->as<JsonValue::List>())
      owners.push_back(*owner.as<int64_t>());
  }
  for (const Matrix& m : plan.matrices()) expected.push_back(m.owner);
  CHECK(owners == expected);
}

TEST_CASE("plan: the hash covers everything that must be equal on all ranks", "[unit][plan]") {
  const Problem good = example();
  const uint64_t hash = Plan(good).hash();
  CHECK(Plan(good).hash() == hash);
  const std::vector<std::function<void(Problem&)>> changes = {
      [](Problem& p) { p.options.world = 5; },
      [](Problem& p) { p.options.transport_dtype = DType::kF32; },
      [](Problem& p) { p.options.chunk_bytes += 1; },
      [](Problem& p) { p.options.window += 1; },
      [](Problem& p) { p.options.least_part += 1; },
      [](Problem& p) { p.options.machine.name = "other"; },
      [](Problem& p) { p.options.machine.network_bytes = 2; },
      [](Problem& p) {
        p.options.machine.products = {{1, 2, 3}};
      },
      [](Problem& p) { p.options.commit = CommitMode::kEager; },
      [](Problem& p) { p.params[0].name += "r"; },
      [](Problem& p) { p.params[0].dtype = DType::kBF16; },
      [](Problem& p) { p.params[0].grad_dtype = DType::kBF16; },
      [](Problem& p) { p.params[0].group = 1; },
      [](Problem& p) { p.params[0].form = FormChoice::kStandard; },
      [](Problem& p) { p.params[0].newton_schulz_steps = 6; },
      [](Problem& p) { p.params[0].iteration_dtype = DType::kBF16; },
      [](Problem& p) { p.params[0].gram_restarts = {1}; },
      [](Problem& p) { p.params[0].update_scale = 0.25; },
      [](Problem& p) { p.params[0].owner = 2; },
      [](Problem& p) { p.params[0].priority = 4; },
      [](Problem& p) { p.params[0].role = Role::kAdamW; },
      [](Problem& p) {
        p.params[0].layout = muon("", mesh({2, 2}), {8, 65}, 1).layout;
      },
      [](Problem& p) {
        p.params[0].layout = muon("", mesh({2, 2}), {8, 64}, 0).layout;
      },
      [](Problem& p) {
        p.params[0].layout = muon("", mesh({2, 2}, {1, 0, 2, 3}), {8, 64}, 1).layout;
      },
      [](Problem& p) { std::swap(p.params[0], p.params[1]); },
      [](Problem& p) { p.params.pop_back(); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Problem other = good;
    changes[i](other);
    INFO("change " << i);
    CHECK(Plan(other).hash() != hash);
  }
}
