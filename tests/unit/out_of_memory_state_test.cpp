// Memory is refused while checkpoints are saved and loaded, through the C ABI.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "muonrt/comm.h"
#include "muonrt/state.h"
#include "support/folder.hpp"
#include "support/one_matrix.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"

using support::Refusal;
using support::refusal;

namespace {

using Values = std::array<float, 6>;

/// What a rank does while memory is refused.
enum class Work { kSave, kBegin, kBeginReserved, kLoad };

struct Trial {
  int ranks, faulty;
  Work work;
  int64_t stride;  // every so many allocations one is refused
  int64_t first;   // that is
};

/// One rank: its optimizer, and what it has seen.
class Rank {
 public:
  Rank(const Trial& trial, muonrt_thread_group_t* group, int rank, const char* folder)
      : trial_(trial), rank_(rank), folder_(folder) {
    if (trial.ranks == 1) {
      muonrt_comm_create_self(&comm_);
    } else {
      muonrt_comm_create_thread(&comm_, group, rank);
      muonrt_comm_set_timeout(comm_, 20'000);
    }
    muonrt_save_options_init(&options_);
    options_.with_params = 1;
    make();
  }
  ~Rank() {
    trainer_.destroy();
    muonrt_comm_destroy(comm_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void run() {
    step();
    said(muonrt_optimizer_save(trainer_.optimizer, folder_, &options_));
    saved_ = values();
    for (int64_t nth = trial_.first; wrong.empty() && try_one(nth);) nth += trial_.stride;
    if (rank_ == trial_.faulty) refusal.disarm();
  }

  std::string seen, wrong;
  int64_t failed = 0, ended = 0;

 private:
  void make() {
    trainer_.destroy();
    said(trainer_.create(comm_));
    if (trial_.work == Work::kBeginReserved)
      said(muonrt_optimizer_save_reserve(trainer_.optimizer, &options_, nullptr));
  }
  void require(bool good, const char* what) {
    if (!good) wrong += muonrt::cat(what, " (", seen, "): ", muonrt_last_error(), "; ");
  }
  void said(muonrt_status_t status) { require(status == MUONRT_OK, "was to be well"); }
  void step() { said(trainer_.step()); }
  void wait() { said(muonrt_comm_barrier(comm_)); }
  Values values() const {
    Values out;
    std::copy_n(trainer_.data, out.size(), out.begin());
    return out;
  }

  muonrt_status_t work() {
    if (trial_.work == Work::kLoad)
      return muonrt_optimizer_load(trainer_.optimizer, folder_, nullptr);
    if (trial_.work == Work::kSave)
      return muonrt_optimizer_save(trainer_.optimizer, folder_, &options_);
    const auto begun = muonrt_optimizer_save_begin(trainer_.optimizer, folder_, &options_);
    return begun == MUONRT_OK ? muonrt_optimizer_save_wait(trainer_.optimizer) : begun;
  }

  /// @return  whether an allocation was refused.
  bool try_one(int64_t nth) {
    step();
    const Values before = values();
    wait();
    if (rank_ == trial_.faulty) refusal.arm(nth);
    wait();
    Refusal::mark(rank_ == trial_.faulty);
    const muonrt_status_t status = work();
    Refusal::mark(false);
    wait();
    const bool fired = refusal.fired();
    wait();
    if (rank_ == trial_.faulty) refusal.disarm();
    seen = muonrt::cat("allocation ", nth, ": ", muonrt_status_name(status));
    statuses += muonrt::cat(status, " ");
    failed += status != MUONRT_OK;
    require(status == MUONRT_OK || status == MUONRT_ERROR_OUT_OF_MEMORY, "another error");
    trial_.work == Work::kLoad ? check_load(status, before) : check_save(status, before);
    return fired;
  }

  void check_save(muonrt_status_t status, const Values& before) {
    require(values() == before, "a save changes the parameters");
    if (status != MUONRT_OK) {
      if (rank_ == 0) check_folder(saved_, before);
      wait();
      said(work());
    }
    saved_ = before;
    if (rank_ == 0) check_folder(saved_, saved_);
    wait();
  }
  /// It can be loaded, and is one of these.
  void check_folder(const Values& old, const Values& fresh) {
    muonrt_comm_t* self = nullptr;
    muonrt_comm_create_self(&self);
    OneMatrix reader;
    said(reader.create(self));
    said(muonrt_optimizer_load(reader.optimizer, folder_, nullptr));
    const bool is_old = std::equal(old.begin(), old.end(), reader.data);
    require(is_old || std::equal(fresh.begin(), fresh.end(), reader.data), "neither old nor new");
    reader.destroy();
    muonrt_comm_destroy(self);
  }

  /// Nothing was changed, or the optimizer has ended.
  void check_load(muonrt_status_t status, const Values& before) {
    if (status == MUONRT_OK) return require(values() == saved_, "not what was saved");
    const std::string text = muonrt_last_error();
    const bool partly = text.find("partly written") != text.npos;
    if (!partly) require(values() == before, "changed by a load that failed");
    if (work() != MUONRT_OK) {
      ended += 1;
      make();
      said(work());
    }
    require(values() == saved_, "not what was saved");
  }

 public:
  std::string statuses;

 private:
  const Trial trial_;
  const int rank_;
  const char* const folder_;
  muonrt_comm_t* comm_ = nullptr;
  muonrt_save_options_t options_;
  OneMatrix trainer_;
  Values saved_{};
};

/// @return  how many trials failed on every rank alike.
int64_t check(const Trial& trial) {
  const test_support::Folder folder;
  const std::string path = folder.path() + "/checkpoint";
  refusal.disarm();
  Refusal::mark(false);
  muonrt_thread_group_t* group = nullptr;
  muonrt_thread_group_create(&group, trial.ranks);
  std::vector<std::string> wrong(static_cast<size_t>(trial.ranks)), statuses(wrong.size());
  int64_t failed = 0, ended = 0;
  transport_test::on_ranks(trial.ranks, [&](int number) {
    Refusal::mark(false);
    Rank rank(trial, group, number, path.c_str());
    rank.run();
    wrong[static_cast<size_t>(number)] = rank.wrong;
    statuses[static_cast<size_t>(number)] = rank.statuses;
    if (number == 0) failed = rank.failed;
    if (number == 0) ended = rank.ended;
  });
  muonrt_thread_group_destroy(group);
  refusal.disarm();
  for (size_t rank = 0; rank < wrong.size(); ++rank) {
    INFO("rank " << rank << " of " << trial.ranks << ", refused: " << trial.faulty);
    const std::string& all = statuses[0];
    CHECK(wrong[rank] == std::string());
    CHECK(statuses[rank] == all);
  }
  CHECK((trial.work == Work::kLoad || ended == 0));
  return failed;
}

void check_all(Work work, int64_t stride) {
  for (const int ranks : {1, 2})
    for (int faulty = 0; faulty < ranks; ++faulty)
      CHECK((check({ranks, faulty, work, stride, Catch::rngSeed() % stride}) > 0 || kSanitized));
}

}  // namespace

TEST_CASE("out of memory: a save fails on every rank or on none, the folder old or new",
          "[unit][state][abi]") {
  for (const Work work : {Work::kSave, Work::kBegin, Work::kBeginReserved}) check_all(work, 59);
}

TEST_CASE("out of memory: a load fails on every rank or on none, and can be made again",
          "[unit][state][abi]") {
  check_all(Work::kLoad, 17);
}

TEST_CASE("out of memory: every allocation of saves and loads may be refused", "[.full]") {
  for (const Work work : {Work::kSave, Work::kBegin, Work::kBeginReserved, Work::kLoad})
    check_all(work, 1);
}
