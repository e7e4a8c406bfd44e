// Tests failed allocations during the saving and loading of checkpoints, through the C ABI.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "muonrt/checkpoint.h"
#include "muonrt/comm.h"
#include "support/faults/allocation_failure.hpp"
#include "support/folder.hpp"
#include "support/one_matrix.hpp"
#include "support/sanitized.hpp"

namespace {

using Values = std::array<float, 6>;

enum class Work { kSave, kBegin, kBeginReserved, kLoad };

/// Ranks that share a folder. Each rank has an optimizer of one replicated matrix.
class World {
 public:
  World(int ranks, Work work) : ranks_(ranks), work_(work) {
    muonrt_thread_group_t* group = nullptr;
    muonrt_thread_group_create(&group, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      muonrt_comm_create_thread(&comms_[rank], group, rank);
      muonrt_comm_set_timeout(comms_[rank], 20'000);
    }
    muonrt_thread_group_destroy(group);
    muonrt_save_options_init(&options_);
    make();
  }
  ~World() {
    for (OneMatrix& trainer : trainers_) trainer.destroy();
    for (muonrt_comm_t* comm : comms_) muonrt_comm_destroy(comm);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void make() {
    for (OneMatrix& trainer : trainers_) trainer.destroy();
    all([&](int rank) {
      const auto made = trainers_[rank].create(comms_[rank]);
      if (made != MUONRT_OK || work_ != Work::kBeginReserved) return made;
      return muonrt_optimizer_save_reserve(nullptr, trainers_[rank].optimizer, &options_);
    });
  }
  void step() {
    all([&](int rank) { return trainers_[rank].step(); });
  }
  void save() {
    all([&](int rank) {
      return muonrt_optimizer_save(trainers_[rank].optimizer, path_.c_str(), &options_);
    });
  }
  /// Runs the work while allocation `nth` of rank `faulty` fails. Returns whether the rank reached
  /// this allocation.
  bool run(int faulty, int64_t nth) {
    return support::refused(ranks_, faulty, nth, [&](int rank) {
      status[rank] = work(trainers_[rank].optimizer);
      support::AllocationFailure::mark(false);
      messages[rank] = status[rank] == MUONRT_OK ? "" : muonrt_get_last_error();
    });
  }
  bool all_have(const Values& values) const {
    for (int rank = 0; rank < ranks_; ++rank)
      if (!std::equal(values.begin(), values.end(), trainers_[rank].data)) return false;
    return true;
  }
  Values values() const {
    Values out;
    std::copy_n(trainers_[0].data, out.size(), out.begin());
    return out;
  }
  /// Returns the values in the checkpoint.
  Values saved() const {
    muonrt_comm_t* self = nullptr;
    muonrt_comm_create_self(&self);
    OneMatrix reader;
    CHECK(reader.create(self) == MUONRT_OK);
    CHECK(muonrt_optimizer_load(reader.optimizer, path_.c_str(), nullptr) == MUONRT_OK);
    Values out;
    std::copy_n(reader.data, out.size(), out.begin());
    reader.destroy();
    muonrt_comm_destroy(self);
    return out;
  }

  muonrt_status_t status[2] = {};
  std::string messages[2];

 private:
  muonrt_status_t work(muonrt_optimizer_t* optimizer) const {
    const char* const folder = path_.c_str();
    if (work_ == Work::kLoad) return muonrt_optimizer_load(optimizer, folder, nullptr);
    if (work_ == Work::kSave) return muonrt_optimizer_save(optimizer, folder, &options_);
    const auto begun = muonrt_optimizer_save_begin(optimizer, folder, &options_);
    return begun == MUONRT_OK ? muonrt_optimizer_save_wait(optimizer) : begun;
  }
  /// Runs `call` on every rank and checks that it succeeds.
  template <class Call>
  void all(const Call& call) {
    std::vector<muonrt_status_t> found(static_cast<size_t>(ranks_));
    support::refused(ranks_, -1, -1,
                     [&](int rank) { found[static_cast<size_t>(rank)] = call(rank); });
    CHECK(found == std::vector<muonrt_status_t>(found.size(), MUONRT_OK));
  }

  const int ranks_;
  const Work work_;
  const test_support::Folder folder_;
  const std::string path_ = folder_.path() + "/checkpoint";
  muonrt_comm_t* comms_[2] = {};
  muonrt_save_options_t options_;
  OneMatrix trainers_[2];
};

/// Checks that the folder contains either the old or the new checkpoint, and that the next save
/// succeeds.
void check_saved(World& world, const Values& old, const Values& fresh) {
  CHECK(world.all_have(fresh));
  if (world.status[0] != MUONRT_OK) {
    const Values found = world.saved();
    CHECK((found == old || found == fresh));
    world.run(-1, -1);
    CHECK(world.messages[0] + world.messages[1] == "");
  }
  CHECK(world.saved() == fresh);
}

/// Checks that nothing has changed, or that the optimizer is unusable. Then checks that the next
/// load succeeds.
void check_loaded(World& world, const Values& old, const Values& fresh) {
  if (world.status[0] != MUONRT_OK) {
    if (world.messages[0].find("partly written") == std::string::npos) CHECK(world.all_have(fresh));
    world.run(-1, -1);
    if (world.status[0] != MUONRT_OK) {
      world.make();
      world.run(-1, -1);
    }
    CHECK(world.messages[0] + world.messages[1] == "");
  }
  CHECK(world.all_have(old));
}

/// Makes one allocation fail in each run, and checks the result.
/// @param stride  The number of the failing allocation increases by this value from run to run.
void check(Work work, int64_t stride) {
  for (const auto& [ranks, faulty] : {std::pair{1, 0}, {2, 0}, {2, 1}}) {
    int64_t failed = 0;
    bool fired = true;
    for (int64_t nth = Catch::rngSeed() % stride; fired; nth += stride) {
      World world(ranks, work);
      world.step();
      world.save();
      const Values old = world.values();
      world.step();
      const Values fresh = world.values();
      fired = world.run(faulty, nth);
      CAPTURE(ranks, faulty, nth, world.messages[0], world.messages[1]);
      for (int rank = 0; rank < ranks; ++rank) CHECK(world.status[rank] == world.status[0]);
      CHECK((world.status[0] == MUONRT_OK || world.status[0] == MUONRT_ERROR_OUT_OF_MEMORY));
      failed += world.status[0] != MUONRT_OK;
      if (work == Work::kLoad) check_loaded(world, old, fresh);
      if (work != Work::kLoad) check_saved(world, old, fresh);
    }
    CHECK((failed > 0 || kSanitized));
  }
}

}  // namespace

TEST_CASE("out of memory: a save fails on every rank or on none, and the folder holds a checkpoint",
          "[unit][state][abi]") {
  for (const Work work : {Work::kSave, Work::kBegin, Work::kBeginReserved}) check(work, 59);
}

TEST_CASE("out of memory: a load fails on every rank or on none, and can be repeated",
          "[unit][state][abi]") {
  check(Work::kLoad, 17);
}

TEST_CASE("out of memory: every allocation of saves and loads may fail", "[.full]") {
  for (const Work work : {Work::kSave, Work::kBegin, Work::kBeginReserved, Work::kLoad})
    check(work, 1);
}
