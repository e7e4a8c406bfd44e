#include <catch2/catch.hpp>
#include <functional>

#include "plan/report/report.hpp"
#include "plan/report/traffic.hpp"
#include "support/plan_memory.hpp"
#include "unit/plan/plan_cases.hpp"

using namespace muonrt;
using plan_case::Case;
using plan_case::mesh;
using plan_case::muon;

namespace {

/// Reads JSON and throws if it is none; `numbers` collects the numbers found under each key.
class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {
    value("");
    if (at_ != text_.size()) throw std::runtime_error("text after the value");
  }
  std::map<std::string, std::vector<double>> numbers;
  std::map<std::string, std::vector<std::string>> strings;

 private:
  char next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    if (at_ == text_.size()) throw std::runtime_error("ends early");
    return text_[at_];
  }
  void expect(char c) {
    if (next() != c)
      throw std::runtime_error(std::string("no ") + c + " at " + text_.substr(at_, 20));
    ++at_;
  }
  std::string string() {
    expect('"');
    std::string out;
    for (; text_.at(at_) != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20)
        throw std::runtime_error("control character");
      if (text_[at_] == '\\') ++at_;
      out += text_.at(at_);
    }
    ++at_;
    return out;
  }
  void list(char close, const std::function<void()>& item) {
    ++at_;
    if (next() != close) {
      item();
      for (; next() == ','; item()) ++at_;
    }
    expect(close);
  }
  void value(const std::string& key) {
    const char c = next();
    if (c == '{') {
      list('}', [&] {
        const std::string name = string();
        expect(':');
        value(name);
      });
    } else if (c == '[') {
      list(']', [&] { value(key); });
    } else if (c == '"') {
      strings[key].push_back(string());
    } else {
      size_t used = 0;
      numbers[key].push_back(std::stod(text_.substr(at_), &used));
      at_ += used;
    }
  }
  const std::string& text_;
  size_t at_ = 0;
};

Case example() {
  Case c;
  const auto on = mesh({2, 2});
  plan_case::add(c, muon("wide", on, {8, 64}, 1), {});
  plan_case::add(c, muon("experts", on, {4, 32, 40}, 0), {});
  plan_case::add(c, muon("gate", on, {12, 1}, 1), {});
  plan_case::add(c, muon("bias", on, {10}, 1), {});
  c.problem.params.back().role = Role::kAdamW;
  c.problem.options.chunk_bytes = 2000;
  return c;
}

}  // namespace

TEST_CASE("traffic: what is measured at once is the sum of the copy lists of every rank",
          "[unit][plan][property]") {
  CHECK(rc::check("random layouts", [] {
    Case c = plan_case::random_case();
    for (ParamSpec& spec : c.problem.params)
      if (random_layout::pick(0, 4) == 0) spec.role = Role::kAdamW;
    for (ParamSpec& spec : c.problem.params)
      if (spec.role == Role::kMuon) spec.owner_bytes = 100 * random_layout::pick(0, 2);
    c.problem.options.max_peers = static_cast<int>(random_layout::pick(0, 3));
    const Plan plan(c.problem);
    const PlanTraffic traffic = measure_traffic(plan);
    int64_t all_sent = 0, moved = 0;
    for (int r = 0; r < plan.problem().options.world; ++r) {
      int64_t sent = 0, received = 0;
      int32_t owned = 0;
      const auto slots = plan.rank_slots(r);
      for (const SlotPlan& s : slots) {
        for (const auto* list : {&s.gather_sends, &s.return_sends, &s.relay_sends})
          for (const Region& region : *list) sent += region.peer == r ? 0 : region.bytes;
        for (const auto* list : {&s.gather_receives, &s.return_receives, &s.relay_receives})
          for (const Region& region : *list) received += region.peer == r ? 0 : region.bytes;
        owned += static_cast<int32_t>(s.owned.size());
      }
      const RankTraffic& got = traffic.ranks[static_cast<size_t>(r)];
      RC_ASSERT(got.sent == sent);
      RC_ASSERT(got.received == received);
      RC_ASSERT(got.owned == owned);
      RC_ASSERT(got.slots == std::ssize(slots));
      const MemoryPlan memory = memory_of(plan, r);
      RC_ASSERT(got.memory.message_bytes == memory.message_bytes);
      RC_ASSERT(got.memory.staged_bytes == memory.staged_bytes);
      RC_ASSERT(got.memory.state_bytes == memory.state_bytes);
      all_sent += sent;
    }
    for (const int64_t bytes : traffic.moved) moved += bytes;
    // What is forwarded has gaps between the messages that it consists of.
    const bool relayed = std::any_of(plan.slots().begin(), plan.slots().end(),
                                     [](const Slot& s) { return s.relay > 0; });
    if (relayed) RC_ASSERT(all_sent >= traffic.moved_total);
    if (!relayed) RC_ASSERT(all_sent == traffic.moved_total);
    RC_ASSERT(moved == traffic.moved_total);
  }));
}

TEST_CASE("plan: memory is stated by kind, worked by hand", "[unit][plan]") {
  // Two ranks, two (8, 4) matrices cut in half, one at each owner; bf16. A rank sends 2 messages of
  // 4 x 4 x 2 = 32 bytes (64 with alignment) and receives as many; the same on the way back.
  Case c;
  const auto on = mesh({2});
  plan_case::add(c, muon("a", on, {8, 4}), {});
  plan_case::add(c, muon("b", on, {8, 4}), {});
  plan_case::add(c, muon("bias", on, {10}), {});
  c.problem.params[2].role = Role::kAdamW;
  MemoryPlan memory = measure_traffic(Plan(c.problem)).ranks[0].memory;
  CHECK(memory.message_bytes == 3 * 128);  // gather out and in, return out; one slot
  CHECK(memory.staged_bytes == 128);
  CHECK(memory.state_bytes == 2 * 16 * 4 + 5 * 8);
  c.problem.options.commit = CommitMode::kEager;
  memory = measure_traffic(Plan(c.problem)).ranks[0].memory;
  CHECK(memory.message_bytes == 4 * 128);
  CHECK(memory.staged_bytes == 0);
  // both at rank 0, one a slot: rank 1 only sends 64 and gets 64 back, two slots in flight
  for (size_t p = 0; p < 2; ++p) c.problem.params[p].owner = 0;
  c.problem.options.chunk_bytes = 1;
  CHECK(measure_traffic(Plan(c.problem)).ranks[1].memory.message_bytes == 2 * (64 + 64));
  CHECK(measure_traffic(Plan(c.problem)).ranks[0].memory.message_bytes ==
        2 * (64 + 128 + 128 + 64));
  c.problem.options.window = 1;
  CHECK(measure_traffic(Plan(c.problem)).ranks[1].memory.message_bytes == 64 + 64);
}

TEST_CASE("describe: the text holds a row for every parameter, slot and rank", "[unit][plan]") {
  const Plan plan(example().problem);
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
  CHECK(lines_with("warning: param 'experts'") == 1);  // 2560 bytes each, budget 2000
  CHECK(text.find(hash_text(plan)) != std::string::npos);
  CHECK(text.find(" \n") == std::string::npos);
  CHECK(plan.describe(1).find("... 3 more\n") != std::string::npos);  // parameters, ranks
}

TEST_CASE("describe: JSON is well formed and agrees with the plan", "[unit][plan]") {
  Case c = example();
  c.problem.params[0].name = "quote \" back \\ tab \t";
  const Plan plan(c.problem);
  const std::string text = plan.json();
  JsonReader json(text);
  CHECK(json.strings["hash"] == std::vector<std::string>{hash_text(plan)});
  CHECK(json.strings["name"].size() == 4);
  CHECK(json.strings["warnings"].size() >= 2);
  CHECK(json.numbers["matrices"].front() == 6);
  CHECK(json.numbers["rank"].size() == 4);
  CHECK(json.numbers["slot"].size() == plan.slots().size());
  std::vector<double> owners;
  for (const Matrix& m : plan.matrices()) owners.push_back(m.owner);
  CHECK(json.numbers["owners"].size() == owners.size() + plan.slots().size());
  for (size_t i = 0; i < owners.size(); ++i) CHECK(json.numbers["owners"][i] == owners[i]);
  CHECK(json.numbers["makespan_cost"].front() == plan.makespan());
  CHECK(json.numbers["balance"].front() >= 1);
}

TEST_CASE("plan: the hash covers whatever ranks must agree on", "[unit][plan]") {
  const Problem good = example().problem;
  const uint64_t hash = Plan(good).hash();
  CHECK(Plan(good).hash() == hash);
  const std::vector<std::function<void(Problem&)>> changes = {
      [](Problem& p) { p.options.world = 5; },
      [](Problem& p) { p.options.transport = DType::kF32; },
      [](Problem& p) { p.options.chunk_bytes += 1; },
      [](Problem& p) { p.options.window += 1; },
      [](Problem& p) { p.options.commit = CommitMode::kEager; },
      [](Problem& p) { p.params[0].name += "r"; },
      [](Problem& p) { p.params[0].dtype = DType::kBF16; },
      [](Problem& p) { p.params[0].grad_dtype = DType::kBF16; },
      [](Problem& p) { p.params[0].group = 1; },
      [](Problem& p) { p.params[0].form = FormChoice::kStandard; },
      [](Problem& p) { p.params[0].newton_schulz_steps = 6; },
      [](Problem& p) { p.params[0].gram_restarts = {1}; },
      [](Problem& p) { p.params[0].update_scale = 0.25; },
      [](Problem& p) { p.params[0].owner = 2; },
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
