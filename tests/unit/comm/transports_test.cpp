// Runs the scripts that every transport must pass. mpi/comm_test.cpp runs the same scripts under
// mpirun.
#include <atomic>
#include <catch2/catch.hpp>
#include <functional>

#include "base/text.hpp"
#include "comm/callback_transport.hpp"
#include "comm/self_transport.hpp"
#include "comm/thread_transport.hpp"
#include "support/callback_table.hpp"
#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_scripts.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

/// A kind of transport, and the numbers of ranks for which it is tested.
struct Kind {
  std::string name;
  std::vector<int> sizes;
  std::function<Transports(int size)> make;
};

Transports over_threads(int size, const ThreadFaults& faults = {}) {
  ThreadGroup group(size, faults);
  Transports out;
  for (int rank = 0; rank < size; ++rank) out.push_back(group.transport(rank));
  return out;
}

std::atomic<int> destroyed = 0;

/// Returns transports that call the functions of a table (muonrt_transport_t).
/// @param change  Removes optional functions from the tables.
Transports over_tables(int size, const std::function<void(muonrt_transport_t&)>& change) {
  Transports out;
  for (auto& inner : over_threads(size)) {
    muonrt_transport_t table = callback_table::table_over(std::move(inner), destroyed);
    change(table);
    out.push_back(std::make_unique<CallbackTransport>(read_transport(&table)));
  }
  return out;
}

/// Runs every script, each on new transports.
void check_all(const Kind& kind) {
  for (const int size : kind.sizes) {
    for (const Script& script : scripts()) {
      if (size < script.fewest_ranks) continue;
      Transports transports = kind.make(size);
      const auto errors = on_ranks(size, [&](int rank) {
        Transport& mine = *transports[static_cast<size_t>(rank)];
        mine.set_timeout_ms(60'000);
        require_none(problem_of(script, mine));
      });
      INFO(kind.name << ", " << size << " ranks: " << script.name);
      CHECK(text_of(errors) == "");
    }
  }
}

}  // namespace

TEST_CASE("transports: in one process deliver every byte and report every error to every rank",
          "[unit][comm][tsan]") {
  check_all({"self", {1}, [](int) {
               Transports out;
               out.push_back(make_self_transport());
               return out;
             }});
  check_all({"threads", {1, 2, 3, 5}, [](int size) { return over_threads(size); }});
  const std::vector<int> sizes = {1, 2, 3};
  check_all({"table", sizes, [](int size) { return over_tables(size, [](auto&) {}); }});
  check_all({"table without reductions", sizes, [](int size) {
               return over_tables(size, [](muonrt_transport_t& table) {
                 table.reduce_max = nullptr;
                 table.reduce_sum = nullptr;
               });
             }});
}

TEST_CASE("transports: eight threads, and ranks over TCP, pass the same scripts", "[unit][comm]") {
  check_all({"threads", {8}, [](int size) { return over_threads(size); }});
  check_all({"tcp", {2, 3, 5}, over_tcp});
}
