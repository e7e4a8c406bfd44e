#include "model/simulate.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <vector>

#include "model/modelled_rank.hpp"
#include "model/resolve.hpp"
#include "optimizer/problem.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "unit/model/message_replay.hpp"

using namespace muonrt;

namespace {

/// A host with 1 GFLOP/s for every product, and without latencies.
MachineProfile profile() {
  MachineProfile out;
  out.name = out.title = "test";
  out.gpu = false;
  out.memory_bytes = 1e9;
  out.products = {{1, 1e9, 1e9}};
  out.pass_bytes = 1e9;
  out.node_bytes = out.network_bytes = 1e9;
  out.node_ranks = 4;
  return out;
}

ParamSettings param(const std::string& name, Layout layout, Role role = Role::kMuon) {
  ParamSettings out;
  out.name = name;
  out.group = role == Role::kMuon ? 0 : 1;
  out.layout = std::move(layout);
  if (out.layout.dims() == 3 && role == Role::kMuon) out.view = View::kStack;
  return out;
}

/// Returns settings with square matrices that are sharded by rows. Rank i mod `ranks` owns matrix
/// i.
OptimizerSettings squares(int ranks, int matrices, int64_t side, int64_t chunk_matrices) {
  OptimizerSettings out = OptimizerSettings::defaults(DeviceKind::kHost);
  out.groups = world::default_groups();
  out.chunk_bytes = chunk_matrices * side * side * 2;
  const auto mesh = std::make_shared<Mesh>(std::vector<int64_t>{ranks}, std::vector<std::string>{});
  for (int i = 0; i < matrices; ++i) {
    out.params.push_back(param(cat("w", i), Layout::from_cuts(mesh, {side, side}, {{{0}, 0}})));
    out.params.back().owner = i % ranks;
  }
  return out;
}

/// All ranks of a plan on the modelled backend.
struct World {
  World(const OptimizerSettings& settings, int world, const MachineProfile& machine)
      : planning(settings, world), methods(make_newton_schulz(settings)), profile(machine) {
    for (int32_t rank = 0; rank < world; ++rank) {
      ranks.push_back(std::make_unique<ModelledRank>(planning, methods, profile, rank));
      recordings.push_back(&ranks.back()->recording());
    }
  }
  std::vector<RankTimes> times(const ExchangeModel& exchange) const {
    return resolve(recordings, profile, static_cast<int>(ranks.size()), exchange);
  }
  double seconds(const ExchangeModel& exchange) const {
    double out = 0;
    for (const RankTimes& r : times(exchange)) out = std::max(out, r.seconds);
    return out;
  }
  double seconds() const { return seconds(exchange_by_rank(profile)); }

  Planning planning;
  std::vector<NewtonSchulz> methods;
  MachineProfile profile;
  std::vector<std::unique_ptr<ModelledRank>> ranks;
  std::vector<const RankRecording*> recordings;
};

/// Returns matrices of random layouts over at most 12 ranks.
std::pair<OptimizerSettings, int> random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  OptimizerSettings out = OptimizerSettings::defaults(DeviceKind::kHost);
  out.groups = world::default_groups();
  const auto mesh = std::make_shared<Mesh>(std::vector<int64_t>{pick(1, 3), pick(1, 4)},
                                           std::vector<std::string>{});
  const int64_t params = pick(2, 8);
  for (int64_t i = 0; i < params; ++i) {
    const Role role = pick(0, 3) > 0 ? Role::kMuon : Role::kAdamW;
    const std::vector<int64_t> size = {pick(1, 600), pick(1, 600)};
    std::vector<Placement> placements;
    const bool partial = pick(0, 3) == 0;
    for (int d = 0; d < 2; ++d) {
      const auto kind = pick(0, 2);
      if (kind == 0) placements.push_back({PlacementKind::kShard, static_cast<int>(pick(0, 1)), 1});
      if (kind == 1) placements.push_back({PlacementKind::kReplicate, 0, 1});
      if (kind == 2)
        placements.push_back({partial ? PlacementKind::kPartial : PlacementKind::kReplicate, 0, 1});
    }
    out.params.push_back(param(
        cat("p", i), Layout::from_placements(mesh, size, placements, Reading::kLiteral), role));
  }
  out.window = static_cast<int>(pick(1, 4));
  out.chunk_bytes = pick(1, 1 << 20);
  out.commit = pick(0, 1) ? CommitMode::kAtomic : CommitMode::kEager;
  out.max_peers = static_cast<int>(pick(0, 3));
  return {out, static_cast<int>(mesh->size())};
}

/// A machine whose products, passes and messages take similar times.
MachineProfile balanced() {
  MachineProfile out = profile();
  out.products = {{16, 1e10, 1e10}, {512, 4e11, 2e11}};
  out.pass_bytes = 1e10;
  out.node_bytes = 4e9;
  out.network_bytes = 1e9;
  out.exchange_seconds = 2e-5;
  out.message_seconds = 1e-6;
  out.pass_seconds = 1e-6;
  return out;
}

}  // namespace

TEST_CASE("simulation: one rank with one matrix takes the sum of its products and passes",
          "[unit][model]") {
  constexpr double kElements = 64 * 64, kFindings = sizeof(Findings), kVote = sizeof(Vote);
  const Planning planning(squares(1, 1, 64, 1), 1);
  const Simulation found = simulate(planning, profile());
  // Newton-Schulz makes five steps of three products. The passes read and write gradients,
  // momentum, weights and iterates in f32, and messages and gathered matrices in bf16.
  const double products = 5 * 3 * 2 * 64 * kElements / 1e9;
  const double local = (kElements * (4 + 4 + 2) +              // pack
                        kElements * (2 + 2) +                  // unpack
                        kElements * (2 * 2 + 4) +              // normalization
                        kElements * (4 + 2) +                  // pack of the update
                        kElements * (4 + 2 * 4 + 2 + 2 * 4) +  // commit
                        4 * kFindings + 9 * kVote + 8 + 16) /  // results and the vote
                       1e9;
  // A single rank exchanges nothing, so it waits only for the copies of the vote and of its sum.
  const double exposed = (2 * 16 + 2 * kVote) / 1e9;
  CHECK(found.critical.products == Approx(products).epsilon(1e-12));
  CHECK(found.critical.local == Approx(local).epsilon(1e-12));
  CHECK(found.critical.exposed == Approx(exposed).epsilon(0).margin(1e-15));
  CHECK(found.seconds == Approx(products + local + exposed).epsilon(1e-12));
  CHECK(found.critical.sent_bytes == 0);
}

// Two ranks each own one matrix in each of two chunks. Only products, exchanges and the vote take
// time.
TEST_CASE("simulation: exchanges of one chunk overlap with products of another", "[unit][model]") {
  MachineProfile p = profile();
  p.pass_bytes = p.node_bytes = p.network_bytes = 1e18;
  const double products = 5 * 3 * 2 * 64.0 * 64 * 64 / 1e9;
  const auto seconds = [&](int window, int64_t chunk_matrices, double exchange) {
    p.exchange_seconds = exchange;
    OptimizerSettings settings = squares(2, 4, 64, chunk_matrices);
    settings.window = window;
    return simulate(Planning(settings, 2), p).seconds;
  };
  // The products take longer than the exchanges, so all exchanges except the first gather and the
  // last return overlap with products.
  const double small = products / 4;
  CHECK(seconds(2, 1, small) == Approx(2 * products + 2 * small + small).epsilon(1e-6));
  CHECK(seconds(1, 1, small) == Approx(2 * products + 4 * small + small).epsilon(1e-6));
  CHECK(seconds(2, 2, small) == Approx(2 * products + 2 * small + small).epsilon(1e-6));
  // The exchanges take longer than the products. With two chunks, four exchanges run one after the
  // other, and all products overlap with them. With one chunk, nothing overlaps, so the step takes
  // two exchanges plus the products.
  const double large = 4 * products;
  CHECK(seconds(2, 1, large) == Approx(4 * large + large).epsilon(1e-6));
  CHECK(seconds(2, 2, large) == Approx(2 * products + 2 * large + large).epsilon(1e-6));
  // A message contains half a matrix in bf16. The vote is reduced and its sum returned over a tree
  // with one level.
  p.message_seconds = small / 8;
  p.node_bytes = 1e9;
  const double message = p.message_seconds + 64 * 32 * 2 / p.node_bytes;
  const double vote = 2 * p.message_seconds + 2 * sizeof(Vote) / p.node_bytes;
  CHECK(seconds(1, 1, small) ==
        Approx(2 * products + 4 * (small + message) + small + vote).epsilon(1e-6));
}

TEST_CASE("simulation: messages are those that the ranks exchange in a real step",
          "[unit][model]") {
  using Key = std::pair<int32_t, int32_t>;  // from, to
  for (const int max_peers : {0, 1}) {
    world::Case c = world::on_mesh({2, 2});
    c.steps = 1;
    c.settings.max_peers = max_peers;
    c.settings.chunk_bytes = 2000;
    const Placement rows{PlacementKind::kShard, 0, 1}, all{PlacementKind::kReplicate, 0, 1},
        partial{PlacementKind::kPartial, 0, 1};
    c.params = {
        world::matrix("a", {33, 20}, {all, rows}), world::matrix("b", {20, 20}, {rows, all}),
        world::matrix("c", {48, 16}, {rows, rows}), world::matrix("d", {16, 24}, {partial, rows})};
    c.params.push_back(world::matrix("e", {40, 3}, {partial, all}));
    c.params.back().role = Role::kAdamW;
    std::mutex mutex;
    std::map<Key, std::vector<int64_t>> real, modelled;
    ThreadFaults faults;
    faults.before_delivery = [&](const ThreadMessage& m) {
      const std::lock_guard lock(mutex);
      if (m.kind == OperationKind::kExchange && m.from != m.to)
        real[{m.from, m.to}].push_back(m.bytes);
    };
    OptimizerSettings settings;
    world::on_ranks(
        c.world,
        [&](Comm& comm) {
          world::Rank rank(c, comm);
          if (comm.rank() == 0) settings = rank.optimizer().settings();
          StepReport report;
          rank.step(0, report);
        },
        faults);
    settings.max_peers = max_peers;
    const World model(settings, c.world, profile());
    for (const RankRecording* r : model.recordings)
      for (const RecordedExchange& x : r->exchanges)
        for (const auto& [peer, bytes] : x.sends)
          if (peer != r->rank) modelled[{r->rank, peer}].push_back(bytes);
    REQUIRE(!real.empty());
    CHECK(modelled == real);
  }
}

TEST_CASE("simulation: random plans: nothing is lost, and every stage counts", "[unit][model]") {
  int counted[3] = {};  // numbers of plans that are faster without products, passes or exchanges
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    const auto [settings, world] = random_case(seed);
    World all(settings, world, balanced());
    const ExchangeModel by_rank = exchange_by_rank(all.profile);
    const std::vector<RankTimes> times = all.times(by_rank);
    int64_t sent = 0, received = 0;
    double slowest = 0, flops = 0;
    for (const RankTimes& r : times) {
      CHECK(r.products + r.local + r.exposed + r.launch == Approx(r.seconds));
      sent += r.sent_bytes;
      received += r.received_bytes;
      slowest = std::max(slowest, r.seconds);
      const RankTraffic& traffic =
          all.planning.reports().full.traffic.ranks[static_cast<size_t>(r.rank)];
      CHECK(r.sent_bytes == traffic.sent);
      CHECK(r.messages == traffic.messages);
    }
    CHECK(sent == received);
    // In each exchange of a chunk, every message that is sent is also received.
    std::map<int64_t, std::map<std::pair<int32_t, int32_t>, int64_t>> missing;
    for (const RankRecording* r : all.recordings) {
      for (const RecordedExchange& x : r->exchanges) {
        for (const auto& [peer, bytes] : x.sends) missing[x.key][{r->rank, peer}] += bytes;
        for (const auto& [peer, bytes] : x.receives) missing[x.key][{peer, r->rank}] -= bytes;
      }
    }
    for (const auto& [key, messages] : missing)
      for (const auto& [pair, bytes] : messages) CHECK(bytes == 0);
    // The model of single messages gives the same result.
    CHECK(all.seconds(message_replay::model(all.profile)) == Approx(slowest).epsilon(0.02));
    // The step does not take longer if one kind of work takes no time.
    for (const OpKind kind : {OpKind::kProducts, OpKind::kLocal}) {
      std::vector<RankRecording> less;
      for (const RankRecording* r : all.recordings) less.push_back(*r);
      std::vector<const RankRecording*> pointers;
      for (RankRecording& r : less) {
        for (auto* ops : {&r.compute, &r.exchange})
          for (RecordedOp& op : *ops) {
            if (op.kind != kind) continue;
            flops += op.flops;
            op.seconds = 0;
          }
        pointers.push_back(&r);
      }
      double without = 0;
      for (const RankTimes& r : resolve(pointers, all.profile, world, by_rank))
        without = std::max(without, r.seconds);
      CHECK(without <= slowest);
      counted[static_cast<size_t>(kind)] += without < slowest;
    }
    CHECK(flops == Approx(all.planning.reports().full.flops));
    MachineProfile free = all.profile;
    free.exchange_seconds = free.message_seconds = 0;
    free.node_bytes = free.network_bytes = 1e18;
    counted[2] += all.seconds(exchange_by_rank(free)) < slowest;
  }
  // Some plans are not faster, because this work overlaps with other work, or because they have no
  // products or messages.
  for (const int plans : counted) CHECK(plans >= 20);
}

TEST_CASE("simulation: the spans of a step are those of its times", "[unit][model]") {
  MachineProfile p = balanced();
  p.pass_seconds = 0;  // some copies of the step are not in any span
  const World all(squares(4, 12, 64, 1), 4, p);
  const std::vector<RankTimes> times = all.times(exchange_by_rank(all.profile));
  for (size_t r = 0; r < times.size(); ++r) {
    int64_t sent = 0, local = 0, end = 0;
    for (const Span& s : all.ranks[r]->pipeline().spans()) {
      CHECK(s.begin <= s.end);
      end = std::max(end, s.end);
      if (s.kind == SpanKind::kExchange) sent += s.bytes_sent;
      if (!s.on_comm()) local += s.end - s.begin;
    }
    CHECK(sent == times[r].sent_bytes);
    CHECK(static_cast<double>(end) <= times[r].seconds * 1e9 + 1);
    CHECK(static_cast<double>(local) ==
          Approx((times[r].products + times[r].local) * 1e9).epsilon(0.02));
  }
  const std::string trace =
      simulate(all.planning, balanced(), {.max_ranks = 8, .trace = true}).trace;
  size_t gathers = 0;
  for (size_t at = 0; (at = trace.find("gather exchange ", at)) != trace.npos; ++at) ++gathers;
  CHECK(gathers == 4 * all.planning.plan().chunks().size());
}

TEST_CASE("simulation: a few ranks of a large world give the time of all", "[unit][model]") {
  const Planning planning(squares(48, 96, 64, 1), 48);
  const Simulation all = simulate(planning, balanced());
  const Simulation some = simulate(planning, balanced(), {.max_ranks = 8});
  CHECK(all.ranks.size() == 48);
  CHECK(some.ranks.size() <= 8);
  CHECK(some.seconds == Approx(all.seconds).epsilon(0.02));
}

TEST_CASE("simulation: a profile is read in full, and its errors name the field", "[unit][model]") {
  const auto profile_with = [](const std::string& from, const std::string& to) {
    std::string text = R"({"name": "n", "title": "t", "device": "cuda",
      "products": {"source": "s", "rates": [{"size": 10, "symmetric": 1, "general": 2},
                                            {"size": 1000, "symmetric": 3, "general": 4}]},)";
    for (const char* field :
         {"memory_bytes", "f32_ratio", "product_seconds", "pass_bytes", "normalize_ratio",
          "pass_seconds", "launch_seconds", "processors", "exchange_processors", "node_ranks",
          "node_bytes", "network_bytes", "exchange_seconds", "message_seconds"})
      text += cat('"', field, R"(": {"value": )", field == std::string("processors") ? 2 : 1,
                  R"(, "source": "s"},)");
    text.back() = '}';
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    return parse_profile(text, "file");
  };
  const MachineProfile read = profile_with("", "");
  CHECK(read.processors == 2);
  CHECK(read.product_rate(100, true, DType::kBF16) == Approx(2));
  CHECK(read.product_rate(1, false, DType::kF32) == Approx(2));
  CHECK(read.product_rate(5000, false, DType::kF16) == Approx(4));
  const auto error = [&](const std::string& from, const std::string& to) -> std::string {
    try {
      profile_with(from, to);
    } catch (const Error& e) {
      return e.message();
    }
    return "";
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(error(R"("pass_bytes": {"value": 1, "source": "s"})", R"("x": 1)"),
             Contains("pass_bytes is missing"));
  CHECK_THAT(error(R"("node_ranks": {"value": 1, "source": "s"})", R"("node_ranks": {"value": 1})"),
             Contains("node_ranks: source is missing"));
  CHECK_THAT(error(R"("node_ranks": {"value": 1,)", R"("node_ranks": {"value": 0,)"),
             Contains("node_ranks: value is 0"));
  CHECK_THAT(error(R"("size": 1000)", R"("size": 10)"), Contains("rates[1]: size is 10"));
  CHECK_THAT(error(R"("title")", R"("other": 1, "title")"), Contains("'other' is not a field"));
  CHECK_THAT(error("cuda", "gpu"), Contains("device is 'gpu'"));
}
