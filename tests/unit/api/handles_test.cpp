// Tests calls with handles that were destroyed, have the wrong type, or belong to the parent of a
// forked process. Also tests handles in use by a thread that ends.
#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <thread>

#include "muonrt/muonrt.h"
#include "support/loopback.hpp"
#include "support/one_matrix.hpp"
#include "support/thread_ranks.hpp"

namespace {

/// Returns whether the last error message contains `text`.
bool error_has(const std::string& text) {
  return std::string(muonrt_get_last_error()).find(text) != std::string::npos;
}

template <class To, class From>
To* as(From* handle) {
  return reinterpret_cast<To*>(handle);
}

/// Calls the functions of a communicator and returns their statuses.
/// @param[out] said Whether all error messages contain `text`.
std::vector<muonrt_status_t> calls_of(muonrt_comm_t* comm, const std::string& text, bool& said) {
  int32_t number = 0;
  char mine = 0, all[8];
  std::vector<muonrt_status_t> out;
  said = true;
  const auto note = [&](muonrt_status_t status) {
    out.push_back(status);
    said = said && error_has(text);
  };
  note(muonrt_comm_get_rank(&number, comm));
  note(muonrt_comm_get_size(&number, comm));
  note(muonrt_comm_set_timeout(comm, 1000));
  note(muonrt_comm_abort(comm, MUONRT_ERROR_ABORTED, ""));
  note(muonrt_comm_barrier(comm));
  note(muonrt_comm_allgather(all, comm, &mine, 1));
  note(muonrt_comm_exchange(comm, nullptr, 0, nullptr, 0));
  muonrt_comm_t* made = nullptr;
  note(muonrt_comm_create_nccl(&made, comm, nullptr));
  note(muonrt_comm_create_staged(&made, comm, 0));
  OneMatrix trainer;
  note(trainer.create(comm));
  return out;
}

/// Calls the functions of an optimizer and returns their statuses.
std::vector<muonrt_status_t> calls_of(muonrt_optimizer_t* o, muonrt_comm_t* comm,
                                      const std::string& text, bool& said) {
  std::vector<muonrt_status_t> out;
  said = true;
  const auto note = [&](muonrt_status_t status) {
    out.push_back(status);
    said = said && error_has(text);
  };
  muonrt_step_args_t args;
  muonrt_step_args_init(&args);
  int64_t number = 0;
  note(muonrt_optimizer_step(nullptr, o, &args));
  note(muonrt_optimizer_step_async(o, &args));
  note(muonrt_optimizer_set_grad(o, 0, nullptr));
  note(muonrt_optimizer_set_grads(o, nullptr, 0));
  note(muonrt_optimizer_set_data(o, 0, nullptr));
  note(muonrt_optimizer_reset_masters(o, nullptr, 0));
  note(muonrt_optimizer_set_group(o, 0, nullptr));
  note(muonrt_optimizer_find_param(&number, o, "w"));
  note(muonrt_optimizer_get_state_shards(nullptr, 0, &number, o));
  note(muonrt_optimizer_save(o, "state", nullptr));
  note(muonrt_optimizer_save_reserve(nullptr, o, nullptr));
  note(muonrt_optimizer_save_begin(o, "state", nullptr));
  note(muonrt_optimizer_save_wait(o));
  note(muonrt_optimizer_load(o, "state", nullptr));
  note(muonrt_optimizer_get_load_notes(nullptr, 0, &number, o));
  note(muonrt_optimizer_get_qk_layers(nullptr, nullptr, 0, &number, o));
  note(muonrt_optimizer_get_clipped_heads(nullptr, nullptr, 0, &number, o));
  note(muonrt_optimizer_get_step(&number, o));
  note(muonrt_optimizer_set_step(o, 1));
  note(muonrt_optimizer_get_update_count(&number, o, 0));
  note(muonrt_optimizer_set_update_count(o, 0, 0));
  note(muonrt_optimizer_describe_plan(nullptr, 0, &number, o, MUONRT_FORMAT_TEXT));
  note(muonrt_optimizer_get_trace(nullptr, 0, &number, o, MUONRT_FORMAT_TEXT));
  note(muonrt_optimizer_get_counters(nullptr, o));
  note(muonrt_optimizer_get_memory(nullptr, o));
  muonrt_plan_t* plan = nullptr;
  note(muonrt_plan_create_from_optimizer(&plan, o));
  note(muonrt_optimizer_get_health(nullptr, nullptr, 0, o));
  note(muonrt_optimizer_recover(o, comm, nullptr));
  return out;
}

void check_all(const std::vector<muonrt_status_t>& seen, muonrt_status_t expected) {
  CHECK(seen == std::vector<muonrt_status_t>(seen.size(), expected));
}

constexpr auto kInvalid = MUONRT_ERROR_INVALID_ARGUMENT;

}  // namespace

TEST_CASE("handles: a destroyed handle is rejected and not destroyed again", "[unit][abi]") {
  muonrt_comm_t *comm = nullptr, *other = nullptr;
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  REQUIRE(muonrt_comm_create_self(&other) == MUONRT_OK);
  REQUIRE(muonrt_thread_group_create(&group, 1) == MUONRT_OK);
  OneMatrix trainer;
  REQUIRE(trainer.create(comm) == MUONRT_OK);
  muonrt_optimizer_t* const late = trainer.optimizer;
  trainer.destroy();
  bool said = false;
  check_all(calls_of(late, comm, "optimizer is an optimizer that was destroyed before", said),
            kInvalid);
  CHECK(said);
  muonrt_optimizer_destroy(late);
  CHECK(error_has("muonrt_optimizer_destroy: optimizer is an optimizer that was destroyed before"));
  muonrt_comm_destroy(comm);
  check_all(calls_of(comm, " is a communicator that was destroyed before", said), kInvalid);
  CHECK(said);
  muonrt_comm_destroy(comm);
  CHECK(error_has("muonrt_comm_destroy: comm is a communicator that was destroyed before"));
  REQUIRE(trainer.create(other) == MUONRT_OK);
  CHECK(muonrt_optimizer_recover(trainer.optimizer, comm, nullptr) == kInvalid);
  CHECK(
      error_has("muonrt_optimizer_recover: survivors is a communicator that was destroyed before"));
  CHECK(trainer.step() == MUONRT_OK);
  muonrt_thread_group_destroy(group);
  muonrt_thread_group_destroy(group);
  CHECK(
      error_has("muonrt_thread_group_destroy: group is a thread group that was destroyed before"));
  muonrt_comm_t* made = nullptr;
  CHECK(muonrt_comm_create_thread(&made, group, 0) == kInvalid);
  CHECK(made == nullptr);
  muonrt_comm_destroy(other);
}

TEST_CASE("handles: each function rejects NULL", "[unit][abi]") {
  bool said = false;
  check_all(calls_of(static_cast<muonrt_comm_t*>(nullptr), " is NULL", said), kInvalid);
  CHECK(said);
  check_all(calls_of(static_cast<muonrt_optimizer_t*>(nullptr), nullptr, "optimizer is NULL", said),
            kInvalid);
  CHECK(said);
  CHECK(muonrt_comm_create_self(nullptr) == kInvalid);
  muonrt_optimizer_destroy(nullptr);
  muonrt_comm_destroy(nullptr);
  muonrt_thread_group_destroy(nullptr);
}

TEST_CASE("handles: an error names the type of a handle of the wrong type", "[unit][abi]") {
  muonrt_comm_t* comm = nullptr;
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  REQUIRE(muonrt_thread_group_create(&group, 1) == MUONRT_OK);
  OneMatrix trainer;
  REQUIRE(trainer.create(comm) == MUONRT_OK);
  bool said = false;
  check_all(calls_of(as<muonrt_optimizer_t>(comm), comm,
                     "optimizer is a communicator; pass an optimizer", said),
            kInvalid);
  CHECK(said);
  check_all(
      calls_of(as<muonrt_comm_t>(trainer.optimizer), " is an optimizer; pass a communicator", said),
      kInvalid);
  CHECK(said);
  check_all(calls_of(as<muonrt_comm_t>(group), " is a thread group; pass a communicator", said),
            kInvalid);
  CHECK(said);
  uint64_t none[8] = {};
  check_all(calls_of(as<muonrt_comm_t>(none), " is no handle of muonrt", said), kInvalid);
  CHECK(said);
  muonrt_comm_destroy(as<muonrt_comm_t>(trainer.optimizer));
  CHECK(error_has("muonrt_comm_destroy: comm is an optimizer; pass a communicator"));
  muonrt_optimizer_destroy(as<muonrt_optimizer_t>(group));
  muonrt_thread_group_destroy(as<muonrt_thread_group_t>(comm));
  CHECK(error_has("group is a communicator; pass a thread group"));
  CHECK(trainer.step() == MUONRT_OK);
  muonrt_comm_destroy(comm);
  muonrt_thread_group_destroy(group);
}

TEST_CASE("handles: muonrt_comm_create_thread rejects each invalid argument", "[unit][abi]") {
  muonrt_thread_group_t* group = nullptr;
  REQUIRE(muonrt_thread_group_create(&group, 2) == MUONRT_OK);
  muonrt_comm_t *comm = nullptr, *again = nullptr;
  CHECK(muonrt_comm_create_thread(nullptr, group, 0) == kInvalid);
  CHECK(muonrt_comm_create_thread(&comm, nullptr, 0) == kInvalid);
  for (const int32_t rank : {-1, 2, INT32_MIN, INT32_MAX})
    CHECK(muonrt_comm_create_thread(&comm, group, rank) == kInvalid);
  CHECK(comm == nullptr);
  REQUIRE(muonrt_comm_create_thread(&comm, group, 1) == MUONRT_OK);
  again = comm;
  CHECK(muonrt_comm_create_thread(&again, group, 1) == kInvalid);
  CHECK(error_has("rank 1 was taken before"));
  CHECK(again == nullptr);
  muonrt_comm_destroy(comm);
  muonrt_thread_group_destroy(group);
}

#if !defined(__SANITIZE_THREAD__)
namespace {

/// Returns the number of open sockets of this process.
int sockets() {
  int out = 0;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    char target[64] = "";
    const std::string path = std::string("/proc/self/fd/") + entry->d_name;
    out += readlink(path.c_str(), target, sizeof target - 1) > 0 &&
           std::strncmp(target, "socket:", 7) == 0;
  }
  closedir(folder);
  return out;
}

}  // namespace

TEST_CASE("handles: a child of fork cannot use the handles, and its parent can",
          "[unit][abi][rendezvous]") {
  const int before = sockets();
  const std::string address = loopback::at_port(loopback::free_port());
  muonrt_comm_t* comms[2] = {};
  OneMatrix trainers[2];
  const auto on_both = [&](auto body) {
    return transport_test::text_of(transport_test::on_ranks(2, [&](int rank) {
      if (body(rank) != MUONRT_OK) transport_test::require_none(muonrt_get_last_error());
    }));
  };
  REQUIRE(on_both([&](int rank) {
            muonrt_tcp_options_t tcp;
            muonrt_tcp_options_init(&tcp);
            tcp.rank = rank;
            tcp.size = 2;
            tcp.address = address.c_str();
            tcp.secret = "a secret of this test";
            tcp.secret_bytes = 21;
            const muonrt_status_t status = muonrt_comm_create_tcp(&comms[rank], &tcp);
            return status == MUONRT_OK ? trainers[rank].create(comms[rank]) : status;
          }) == "");
  REQUIRE(on_both([&](int rank) { return trainers[rank].step(); }) == "");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int wrong = 0;
    for (int rank = 0; rank < 2; ++rank) {
      bool said = false;
      for (const muonrt_status_t s : calls_of(comms[rank], "was made by process", said))
        wrong |= s != MUONRT_ERROR_INVALID_STATE;
      wrong |= 2 * !said;
      for (const muonrt_status_t s :
           calls_of(trainers[rank].optimizer, comms[rank], "was made by process", said))
        wrong |= 4 * (s != MUONRT_ERROR_INVALID_STATE);
      wrong |= 8 * !said;
      trainers[rank].destroy();
      muonrt_comm_destroy(comms[rank]);
    }
    wrong |= 16 * (sockets() != before);
    muonrt_comm_t* own = nullptr;
    wrong |= 32 * (muonrt_comm_create_self(&own) != MUONRT_OK);
    _exit(wrong);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(on_both([&](int rank) { return trainers[rank].step(); }) == "");
  CHECK(std::memcmp(trainers[0].data, trainers[1].data, sizeof trainers[0].data) == 0);
  for (int rank = 0; rank < 2; ++rank) {
    trainers[rank].destroy();
    muonrt_comm_destroy(comms[rank]);
  }
}
#endif

TEST_CASE("handles: a communicator is not destroyed inside a call on it", "[unit][abi][tsan]") {
  struct Destroying {
    muonrt_comm_t* comm = nullptr;
    std::atomic<bool> inside = false, ended = false;
  } both[2];  // [0] is destroyed by the calling thread, [1] by another thread
  for (Destroying& d : both) {
    muonrt_transport_t table;
    muonrt_transport_init(&table);
    table.rank = 0, table.size = 1, table.state = &d;
    table.exchange = [](auto...) -> muonrt_status_t { return MUONRT_OK; };
    table.allgather = [](void* state, const void*, void*, int64_t, int64_t, char*,
                         int64_t) -> muonrt_status_t {
      auto& mine = *static_cast<Destroying*>(state);
      mine.inside = true;
      if (mine.comm) muonrt_comm_destroy(mine.comm);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      mine.ended = true;
      return MUONRT_OK;
    };
    muonrt_comm_t* comm = nullptr;
    REQUIRE(muonrt_comm_create_callbacks(&comm, &table) == MUONRT_OK);
    if (&d == &both[0]) {
      d.comm = comm;
      CHECK(muonrt_comm_barrier(comm) == MUONRT_OK);
      CHECK(error_has("muonrt_comm_destroy: this thread is inside a call on comm"));
      muonrt_comm_destroy(comm);
    } else {
      std::thread calls([&] { muonrt_comm_barrier(comm); });
      while (!d.inside) std::this_thread::yield();
      muonrt_comm_destroy(comm);
      CHECK(d.ended);
      calls.join();
    }
    CHECK(muonrt_comm_barrier(comm) == kInvalid);
  }
}

namespace {

/// A transport with one rank. `by` selects how its functions end the calling thread.
struct Ending {
  enum class By { kNothing, kExit, kCancel } by = By::kNothing;

  void here() {
    if (by == By::kExit) pthread_exit(this);
    if (by == By::kCancel) {
      pthread_cancel(pthread_self());
      pthread_testcancel();
    }
  }
  static muonrt_status_t exchange(void* state, const muonrt_send_t*, int64_t,
                                  const muonrt_receive_t*, int64_t, int64_t, char*, int64_t) {
    static_cast<Ending*>(state)->here();
    return MUONRT_OK;
  }
  static muonrt_status_t allgather(void* state, const void* mine, void* all, int64_t bytes, int64_t,
                                   char*, int64_t) {
    static_cast<Ending*>(state)->here();
    std::memcpy(all, mine, static_cast<size_t>(bytes));
    return MUONRT_OK;
  }
};

/// Runs `work` in a new thread and returns the exit value of the thread.
void* end_of(const std::function<void()>& work) {
  pthread_t thread;
  const auto body = [](void* given) -> void* {
    (*static_cast<const std::function<void()>*>(given))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, nullptr, body, const_cast<std::function<void()>*>(&work)) == 0);
  void* out = nullptr;
  pthread_join(thread, &out);
  return out;
}

}  // namespace

TEST_CASE("handles: a thread may end inside a function of the caller", "[unit][abi]") {
  // If caller_thread_only is 0, a thread of the optimizer calls the functions during a step.
  for (const int32_t on_caller : {1, 0}) {
    for (const bool in_step : {false, true}) {
      for (const auto by : {Ending::By::kExit, Ending::By::kCancel}) {
        Ending ending;
        muonrt_transport_t table;
        muonrt_transport_init(&table);
        table.rank = 0;
        table.size = 1;
        table.state = &ending;
        table.exchange = Ending::exchange;
        table.allgather = Ending::allgather;
        table.caller_thread_only = on_caller;
        muonrt_comm_t* comm = nullptr;
        REQUIRE(muonrt_comm_create_callbacks(&comm, &table) == MUONRT_OK);
        OneMatrix trainer;
        REQUIRE(trainer.create(comm) == MUONRT_OK);
        ending.by = by;
        muonrt_status_t status = MUONRT_OK;
        void* const end =
            end_of([&] { status = in_step ? trainer.step() : muonrt_comm_barrier(comm); });
        if (in_step && on_caller == 0) {
          CHECK(end == nullptr);
          CHECK(status == MUONRT_ERROR_UNDECIDED);  // one rank calls the transport only in the vote
        } else {
          CHECK(end == (by == Ending::By::kExit ? static_cast<void*>(&ending) : PTHREAD_CANCELED));
        }
        ending.by = Ending::By::kNothing;
        // The next call returns the error and does not block.
        const muonrt_status_t after = in_step ? trainer.step() : muonrt_comm_barrier(comm);
        CHECK(after != MUONRT_OK);
        CAPTURE(muonrt_get_last_error());
        CHECK(error_has("thread ended inside"));
        trainer.destroy();
        muonrt_comm_destroy(comm);
      }
    }
  }
}
