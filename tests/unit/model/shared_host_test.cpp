#include <catch2/catch.hpp>
#include <vector>

#include "base/error.hpp"
#include "model/resolve.hpp"
#include "plan/machine/named_profiles.hpp"

using namespace muonrt;

namespace {

/// A node of two ranks with one core each, and 1 GB/s for passes, copies and messages. An exchange
/// takes 10 us and each message takes 1 us, in addition to the time for its bytes.
MachineProfile host() {
  MachineProfile out;
  out.name = out.title = "test";
  out.gpu = false;
  out.products = {{1, 1e9, 1e9}};
  out.pass_bytes = out.node_bytes = out.network_bytes = 1e9;
  out.processors = out.node_ranks = 2;
  out.exchange_processors = 1;
  out.exchange_seconds = 10e-6;
  out.message_seconds = 1e-6;
  return out;
}

RecordedOp op(OpKind kind, double seconds = 0, int64_t index = -1) {
  RecordedOp out;
  out.kind = kind;
  out.seconds = seconds;
  out.index = index;
  return out;
}

RankRecording rank(int32_t number, std::vector<RecordedOp> compute,
                   std::vector<RecordedOp> exchange = {}) {
  RankRecording out;
  out.rank = number;
  out.compute = std::move(compute);
  out.exchange = std::move(exchange);
  return out;
}

std::vector<RankTimes> times(const MachineProfile& profile, const std::vector<RankRecording>& all) {
  std::vector<const RankRecording*> pointers;
  for (const RankRecording& r : all) pointers.push_back(&r);
  return resolve(pointers, profile, static_cast<int>(all.size()), exchange_by_rank(profile));
}

constexpr double kUs = 1e-6;

}  // namespace

TEST_CASE("shared host: ranks that compute share the cores of their node", "[unit][model]") {
  MachineProfile p = host();
  const std::vector<RankRecording> both = {rank(0, {op(OpKind::kProducts, 10 * kUs)}),
                                           rank(1, {op(OpKind::kProducts, 30 * kUs)})};
  CHECK(times(p, both)[0].seconds == Approx(10 * kUs));
  CHECK(times(p, both)[1].seconds == Approx(30 * kUs));
  // On one core, both ranks run at half speed until rank 0 has finished.
  p.processors = 1;
  CHECK(times(p, both)[0].products == Approx(20 * kUs));
  CHECK(times(p, both)[1].seconds == Approx(40 * kUs));
  // Two ranks with two threads each share two cores.
  p.processors = 2;
  p.rank_threads = 2;
  CHECK(times(p, both)[1].seconds == Approx(40 * kUs));
  // Ranks of different nodes do not share cores.
  p.processors = p.node_ranks = 1;
  p.rank_threads = 0;
  CHECK(times(p, both)[0].seconds == Approx(10 * kUs));
}

TEST_CASE("shared host: passes run at once, and products get the cores that are left",
          "[unit][model]") {
  MachineProfile p = host();
  p.processors = 1;
  const auto found = times(
      p, {rank(0, {op(OpKind::kLocal, 10 * kUs)}), rank(1, {op(OpKind::kProducts, 30 * kUs)})});
  CHECK(found[0].seconds == Approx(10 * kUs).epsilon(2e-3));  // products keep a small share
  CHECK(found[1].seconds == Approx(40 * kUs));
}

TEST_CASE("shared host: a rank copies its own message, and then those of ready ranks",
          "[unit][model]") {
  std::vector<RankRecording> both = {rank(0, {}, {op(OpKind::kExchange, 0, 0)}),
                                     rank(1, {}, {op(OpKind::kExchange, 0, 0)})};
  both[0].exchanges = {{{{0, 1000}, {1, 2000}}, {{0, 1000}, {1, 500}}, 0}};
  both[1].exchanges = {{{{0, 500}, {1, 3000}}, {{0, 2000}, {1, 3000}}, 0}};
  MachineProfile p = host();
  // Each rank copies its message to itself, in 2 us on rank 0 and in 6 us on rank 1. The messages
  // between the ranks can be copied from 16 us on. Rank 0 needs 1.5 us and rank 1 needs 3 us for
  // its copy. Both ranks then wait until the other rank has received their message.
  for (const RankTimes& r : times(p, both)) CHECK(r.exchange == Approx(19 * kUs));
  // On one core, the copies of the messages from each rank to itself end after 4 and 8 us. The
  // copies between the ranks begin at 18 us and take 3 and 4.5 us.
  p.processors = 1;
  for (const RankTimes& r : times(p, both)) CHECK(r.exchange == Approx(22.5 * kUs));
  // Rank 0 waits until rank 1 has copied its message, and then continues after the handover.
  p = host();
  p.handover_seconds = 5e-6;
  CHECK(times(p, both)[0].exchange == Approx(24 * kUs));
  CHECK(times(p, both)[1].exchange == Approx(19 * kUs));
  CHECK(times(p, both)[0].sent_bytes == 2000);
  CHECK(times(p, both)[0].received_bytes == 500);
  // With two nodes, messages use links instead of copies. Both ranks are ready after 6 us. An
  // exchange with one message takes 11 us, in addition to 2 us for 2000 bytes.
  p = host();
  p.node_ranks = 1;
  for (const RankTimes& r : times(p, both)) CHECK(r.exchange == Approx((11 + 6 + 2) * kUs));
  both[1].exchanges[0].receives[0].bytes = 1999;
  CHECK_THROWS_AS(times(host(), both), Error);
}

TEST_CASE("shared host: a copy takes the core from the thread that computes", "[unit][model]") {
  MachineProfile p = host();
  p.processors = p.node_ranks = 1;
  RankRecording one = rank(0, {op(OpKind::kProducts, 20 * kUs)}, {op(OpKind::kExchange, 0, 0)});
  one.exchanges = {{{{0, 3000}}, {{0, 3000}}, 0}};
  const RankTimes found = times(p, {one})[0];
  CHECK(found.exchange == Approx(6 * kUs).epsilon(2e-3));
  CHECK(found.products == Approx(26 * kUs));
}

TEST_CASE("shared host: a stream that has waited for another one continues later",
          "[unit][model]") {
  MachineProfile p = host();
  p.handover_seconds = 3e-6;
  RankRecording one = rank(0, {op(OpKind::kWait, 0, 0), op(OpKind::kLocal, 4 * kUs)},
                           {op(OpKind::kLocal, 10 * kUs), op(OpKind::kRecord, 0, 0)});
  one.events = 1;
  const RankTimes waits = times(p, {one})[0];
  CHECK(waits.exposed == Approx(13 * kUs));
  CHECK(waits.seconds == Approx(17 * kUs));
  // A rank that does not have to wait has no latency.
  one.compute.insert(one.compute.begin(), op(OpKind::kLocal, 12 * kUs));
  CHECK(times(p, {one})[0].seconds == Approx(16 * kUs));
}

TEST_CASE("shared host: a stream waits longer if all cores compute", "[unit][model]") {
  MachineProfile p = host();
  p.handover_seconds = 3e-6;
  p.busy_handover_seconds = 20e-6;
  RankRecording one = rank(
      0,
      {op(OpKind::kLocal, 10 * kUs), op(OpKind::kRecord, 0, 0), op(OpKind::kProducts, 100 * kUs)},
      {op(OpKind::kWait, 0, 0), op(OpKind::kLocal, 4 * kUs)});
  one.exchange.push_back(op(OpKind::kRecord, 0, 1));
  one.compute.push_back(op(OpKind::kWait, 0, 1));
  one.compute.push_back(op(OpKind::kProducts, 1 * kUs));
  one.events = 2;
  int64_t ends[2] = {};
  const auto end = [&](double cores) {
    p.processors = p.node_ranks = cores;
    RankRecording timed = one;
    RecordedOp stamp = op(OpKind::kTimestamp);
    stamp.where = ends;
    timed.exchange.push_back(stamp);
    times(p, {timed});
    return ends[0] - 1;
  };
  CHECK(end(2) == 17000);                                             // nanoseconds
  CHECK(static_cast<double>(end(1)) == Approx(34000).epsilon(2e-3));  // products keep a small share
}

TEST_CASE("shared host: the rates of passes follow their kind and their footprint",
          "[unit][model]") {
  MachineProfile p = host();
  CHECK(p.pass_rate(PassKind::kTranspose, 1e6) == 1e9);
  p.normalize_ratio = 0.5;
  CHECK(p.pass_rate(PassKind::kNormalize, 1e6) == 0.5e9);
  p.passes = {{1e4, {8e9, 7e9, 6e9, 5e9, 4e9, 3e9, 2e9}},
              {1e6, {4e9, 3e9, 2e9, 1e9, 2e9, 1e9, 1e9}}};
  CHECK(p.pass_rate(PassKind::kCopy, 100) == 8e9);
  CHECK(p.pass_rate(PassKind::kCommit, 1e5) == Approx(3e9));
  CHECK(p.pass_rate(PassKind::kAdamW, 1e8) == 1e9);
  // Each of four ranks has one thread, and a single rank has two threads.
  p.memory_bytes = 8e9;
  CHECK(p.with_ranks(4, 0).threads() == 1);
  CHECK(p.with_ranks(4, 0).memory_bytes == 4e9);
  CHECK(p.with_ranks(4, 0).pass_rate(PassKind::kCopy, 100) == 8e9);
  CHECK(p.with_ranks(1, 0).threads() == 2);
  CHECK(p.with_ranks(1, 0).pass_rate(PassKind::kCopy, 100) == 16e9);
  CHECK(p.with_ranks(1, 1).product_rate(64, true, DType::kF32) == 1e9);
}

TEST_CASE("shared host: a machine is a name or a JSON text", "[unit][model]") {
  for (const NamedProfile& named : named_profiles()) {
    CHECK(find_profile(named.name, "machine").name == named.name);
    CHECK(find_profile(std::string(" \n") + named.json, "machine").name == named.name);
  }
  try {
    find_profile("h101", "machine");
    FAIL("no error");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kInvalidArgument);
    CHECK_THAT(e.message(), Catch::Matchers::Contains("machine is 'h101'") &&
                                Catch::Matchers::Contains("h100, h200"));
  }
  CHECK_THROWS_AS(find_profile("{", "machine"), Error);
}
