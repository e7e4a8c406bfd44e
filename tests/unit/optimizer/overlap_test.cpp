#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "support/attempts.hpp"
#include "support/rank_check.hpp"
#include "support/wrapped_device.hpp"

using namespace muonrt;

namespace {

// Counts the gathers that are complete on each rank, and makes a product wait for one of them.
class Gate {
 public:
  explicit Gate(int ranks) : arrived_(static_cast<size_t>(ranks)) {}
  void arrive(int rank) {
    const std::lock_guard lock(mutex_);
    ++arrived_[static_cast<size_t>(rank)];
    changed_.notify_all();
  }
  /// Waits until `count` gathers are complete on `rank`. Throws TIMEOUT if they are not complete in
  /// time.
  void wait_for(int rank, int64_t count, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_for(
        lock, patience, [&] { return arrived_[static_cast<size_t>(rank)] >= count; });
    if (!came)
      throw Error(Status::kTimeout, cat("product held: exchange ", count, " did not arrive"));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> arrived_;
};

// Delays the products of chunk k until gather k + 1 is complete. Each normalization begins a new
// chunk. The last chunk of a step is not delayed, because there is no further gather.
class GatedOps : public wrapped::Ops {
 public:
  GatedOps(muonrt::Ops& inner, Gate& gate, int rank, int64_t chunks,
           std::chrono::milliseconds patience)
      : wrapped::Ops(inner), gate_(gate), rank_(rank), chunks_(chunks), patience_(patience) {}

  void normalize(Stream& s, const MatrixBatch& in, const MatrixBatch& out, const Normalization& how,
                 Findings* findings) override {
    const int64_t product = products_++;
    if (product + 1 < chunks_) {
      host::host_stream(s).enqueue(
          host::Task([gate = &gate_, rank = rank_, product, patience = patience_] {
            gate->wait_for(rank, product + 2, patience);
          }));
    }
    inner_.normalize(s, in, out, how, findings);
  }

 private:
  Gate& gate_;
  int rank_;
  int64_t chunks_, products_ = 0;
  std::chrono::milliseconds patience_;
};

constexpr int kRanks = 2;
constexpr int64_t kChunks = 4;

// Returns a case in which each rank owns one 16 x 16 matrix in each of four chunks.
world::Case gated_case(int window, CommitMode commit) {
  world::Case c = world::on_mesh({kRanks});
  c.steps = 1;
  c.settings.window = window;
  c.settings.commit = commit;
  c.settings.chunk_bytes = 16 * 16 * 2;
  for (int i = 0; i < kRanks * kChunks; ++i)
    world::add(c, cat("w", i), {16, 16}, {{PlacementKind::kShard, 0, 1}}).owner = i % kRanks;
  return c;
}

// Runs a step with delayed products. A rank runs two exchanges for each chunk, the gather and the
// return. Only the gather is counted.
void run_gated(int window, CommitMode commit, std::chrono::milliseconds patience) {
  Gate gate(kRanks);
  std::mutex mutex;
  std::vector<int64_t> seen(kRanks, 0);
  const auto order = schedule(kChunks, window, commit);
  std::vector<bool> is_gather;
  for (const Action& a : order) {
    if (a.stage == Stage::kGather) is_gather.push_back(true);
    if (a.stage == Stage::kOrthogonalize) is_gather.push_back(false);
  }
  ThreadFaults faults;
  faults.after_operation = [&](int32_t, int32_t rank, const Operation& operation) {
    if (operation.kind != OperationKind::kExchange) return;
    int64_t index = 0;
    {
      const std::lock_guard lock(mutex);
      index = seen[static_cast<size_t>(rank)]++;
    }
    if (is_gather[static_cast<size_t>(index)]) gate.arrive(rank);
  };
  world::on_ranks(
      kRanks,
      [&](Comm& comm) {
        comm.set_timeout_ms(20000);
        const world::Case c = gated_case(window, commit);
        world::Rank rank(c, comm, [&](const OptimizerSettings& s) {
          return wrapped::with<GatedOps>(world::host_device(s), gate, comm.rank(), kChunks,
                                         patience);
        });
        RANK_CHECK(rank.optimizer().plan().chunks().size() == kChunks);
        StepReport report;
        rank.step(0, report);
      },
      std::move(faults));
}

/// Runs two steps with matrices of `side` x `side`. Returns the number of chunks and the tensors.
std::pair<int32_t, world::Tensors> chunks_and_bits(const Placement& placement, int window,
                                                   int64_t side) {
  world::Case c = world::on_mesh({kRanks});
  c.steps = 2;
  c.settings.window = window;
  for (int i = 0; i < 3 * kRanks; ++i) world::add(c, cat("w", i), {side, side}, {placement});
  std::atomic<int32_t> chunks = 0;
  world::on_ranks(kRanks, [&](Comm& comm) {
    world::Rank rank(c, comm, world::host_device);
    chunks = static_cast<int32_t>(rank.optimizer().plan().chunks().size());
  });
  return {chunks, world::run(c).tensors};
}

}  // namespace

TEST_CASE("overlap: by default there are as many chunks as are in flight, with the same bits",
          "[unit][pipeline][bits]") {
  const int64_t side = 192;  // 72 KiB in bf16, more than PlanOptions::least_part
  for (const auto kind : {PlacementKind::kShard, PlacementKind::kReplicate}) {
    const auto alone = chunks_and_bits({kind, 0, 1}, 1, side);
    const auto default_ = chunks_and_bits({kind, 0, 1}, PlanOptions().window, side);
    CHECK(alone.first == 1);
    CHECK(default_.first == 3);  // each chunk contains one matrix for each owner
    CHECK((alone.second == default_.second));
  }
  // Each owner receives only 24 KiB, which is too little for several chunks.
  CHECK(chunks_and_bits({PlacementKind::kShard, 0, 1}, 3, 64).first == 1);
}

TEST_CASE("overlap: exchange k + 1 arrives while product k is held, with two chunks in flight",
          "[unit][pipeline][tsan]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    CHECK_NOTHROW(run_gated(2, commit, std::chrono::seconds(15)));
    CHECK_NOTHROW(run_gated(3, commit, std::chrono::seconds(15)));
  }
}

TEST_CASE("overlap: with one chunk in flight the same gate never opens", "[unit][pipeline]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    try {
      run_gated(1, commit, std::chrono::milliseconds(200));
      FAIL("the product was not held");
    } catch (const Error& e) {
      INFO(e.message());
      // An eager step has already voted when its products run. An atomic step has not.
      CHECK(e.status() == (commit == CommitMode::kAtomic ? Status::kTimeout : Status::kTorn));
      CHECK(e.message().find("product held") != std::string::npos);
    }
  }
}
