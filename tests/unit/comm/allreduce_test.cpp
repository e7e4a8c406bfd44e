// Tests muonrt_comm_allreduce_sum() with the thread transport and with TCP, through the C++
// interface.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "support/loopback.hpp"

namespace {

using Values = std::vector<double>;
using Body = std::function<void(muonrt::Comm&)>;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Runs `body` on `size` threads, each with the communicator that `create(rank)` returns. Returns
/// the errors that are thrown.
std::string errors_of(int32_t size, const std::function<muonrt::Comm(int32_t)>& create,
                      const Body& body) {
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        muonrt::Comm comm = create(rank);
        comm.set_timeout(30'000);
        body(comm);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string out;
  for (const std::string& error : errors) out += error;
  return out;
}

std::string over_threads(int32_t size, const Body& body) {
  muonrt::ThreadGroup group(size);
  return errors_of(
      size, [&](int32_t rank) { return group.comm(rank); }, body);
}

std::string over_tcp(int32_t size, const Body& body) {
  const std::string address = loopback::at_port(loopback::free_port()), secret(32, 's');
  const auto create = [&](int32_t rank) {
    muonrt_tcp_options_t options = muonrt::tcp_options();
    options.rank = rank;
    options.size = size;
    options.address = address.c_str();
    options.secret = secret.data();
    options.secret_bytes = static_cast<int64_t>(secret.size());
    return muonrt::Comm::tcp(options);
  };
  return errors_of(size, create, body);
}

using World = std::string (*)(int32_t size, const Body& body);
constexpr World kWorlds[] = {over_threads, over_tcp};

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), 8 * a.size()));
}

/// Returns the values of one rank. Their sum depends on the order of the ranks.
Values values_of(int32_t rank, size_t n) {
  Values out(n);
  for (size_t i = 0; i < n; ++i) {
    const auto x = static_cast<uint32_t>(7919 * rank + 1) * static_cast<uint32_t>(104729 * i + 1);
    out[i] = std::ldexp(static_cast<double>(x) - 2e9, static_cast<int>(x % 60) - 30);
  }
  return out;
}

Values sums_in_order(int32_t size, size_t n) {
  Values out = values_of(0, n);
  for (int32_t rank = 1; rank < size; ++rank) {
    const Values next = values_of(rank, n);
    for (size_t i = 0; i < n; ++i) out[i] += next[i];
  }
  return out;
}

/// Throws an error unless the sums of `values[rank]` over all ranks are bitwise identical to
/// `expected`.
void require_sums(muonrt::Comm& comm, const std::vector<Values>& values, const Values& expected) {
  const Values sums = comm.allreduce_sum(values[static_cast<size_t>(comm.rank())]);
  if (!same_bits(sums, expected)) throw std::runtime_error("sums differ; ");
}

}  // namespace

TEST_CASE("allreduce_sum: adds in rank order, with the same bits on all ranks and transports",
          "[unit][comm][tsan]") {
  for (const World world : kWorlds) {
    for (const int32_t size : {1, 2, 3, 5}) {
      INFO(size << " ranks");
      CHECK(
          world(size, [&](muonrt::Comm& comm) {
            for (const size_t n : {size_t{1}, size_t{2}, size_t{1000}}) {
              if (!same_bits(comm.allreduce_sum(values_of(comm.rank(), n)), sums_in_order(size, n)))
                throw std::runtime_error("sums differ; ");
            }
          }) == "");
    }
    // If rank 2 were added before rank 1, the sum would be 1.
    CHECK(world(3, [](muonrt::Comm& comm) {
            require_sums(comm, {{1e16}, {1}, {-1e16}}, {0});
          }) == "");
  }
}

TEST_CASE("allreduce_sum: more values than are gathered at once", "[unit][comm]") {
  constexpr size_t kMany = 200'000;  // 3 ranks gather at most 174,762 numbers at a time
  const Values expected = sums_in_order(3, kMany);
  CHECK(over_threads(3, [&](muonrt::Comm& comm) {
          if (!same_bits(comm.allreduce_sum(values_of(comm.rank(), kMany)), expected))
            throw std::runtime_error("sums differ; ");
        }) == "");
}

TEST_CASE("allreduce_sum: infinities, NaN and signed zeros", "[unit][comm]") {
  double other_nan = 0;  // becomes a negative NaN with a payload
  const uint64_t bits = 0xfff8000000001234;
  std::memcpy(&other_nan, &bits, sizeof bits);
  const std::vector<Values> values = {{kInf, kInf, -kInf, other_nan, 1, -0.0, -0.0, 1e308},
                                      {1, -kInf, -kInf, 1, other_nan, -0.0, 0.0, 1e308}};
  const Values expected = {kInf, kNan, -kInf, kNan, kNan, -0.0, 0.0, kInf};
  for (const World world : kWorlds)
    CHECK(world(2, [&](muonrt::Comm& comm) { require_sums(comm, values, expected); }) == "");
  CHECK(same_bits(muonrt::Comm::self().allreduce_sum({other_nan, -0.0}), {kNan, -0.0}));
}

TEST_CASE("allreduce_sum: no values, and sums that replace the values", "[unit][comm][tsan]") {
  for (const World world : kWorlds) {
    CHECK(world(3, [](muonrt::Comm& comm) {
            if (!comm.allreduce_sum({}).empty()) throw std::runtime_error("values from nothing; ");
            muonrt::check(muonrt_comm_allreduce_sum(nullptr, comm.get(), nullptr, 0));
            double both[2] = {1.0 + comm.rank(), 0.5};
            muonrt::check(muonrt_comm_allreduce_sum(both, comm.get(), both, 2));
            if (both[0] != 6 || both[1] != 1.5) throw std::runtime_error("sums differ; ");
          }) == "");
  }
}

TEST_CASE("allreduce_sum: a number of values that differs is a mismatch on all ranks",
          "[unit][comm][tsan]") {
  for (const World world : kWorlds) {
    for (const int64_t n_of_rank_1 : {0, 2}) {
      INFO("n is " << n_of_rank_1 << " on rank 1");
      const std::string text =
          "n differs between ranks: 3 on rank 0, " + std::to_string(n_of_rank_1) + " on rank 1";
      CHECK(world(3, [&](muonrt::Comm& comm) {
              const Values values(3, 1.0);
              Values sums(3, -1.0);
              const int64_t n = comm.rank() == 1 ? n_of_rank_1 : 3;
              const auto status =
                  muonrt_comm_allreduce_sum(sums.data(), comm.get(), values.data(), n);
              if (status != MUONRT_ERROR_MISMATCH) throw std::runtime_error("another status; ");
              if (std::string(muonrt_get_last_error()).find(text) == std::string::npos)
                throw std::runtime_error(std::string(muonrt_get_last_error()) + "; ");
              if (sums != Values(3, -1.0)) throw std::runtime_error("sums were written; ");
              if (muonrt_comm_barrier(comm.get()) != MUONRT_ERROR_MISMATCH)
                throw std::runtime_error("the communicator is still usable; ");
            }) == "");
    }
  }
}

TEST_CASE("allreduce_sum: invalid arguments are reported with their names", "[unit][comm][abi]") {
  muonrt::Comm comm = muonrt::Comm::self();
  double value = 1;
  const auto check_error = [](muonrt_status_t status, const char* text) {
    CHECK(status == MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
  };
  check_error(muonrt_comm_allreduce_sum(&value, nullptr, &value, 1), "comm");
  check_error(muonrt_comm_allreduce_sum(nullptr, comm.get(), &value, 1), "sums");
  check_error(muonrt_comm_allreduce_sum(&value, comm.get(), nullptr, 1), "values");
  check_error(muonrt_comm_allreduce_sum(&value, comm.get(), &value, -1), "n is -1");
  check_error(muonrt_comm_allreduce_sum(&value, comm.get(), &value, (1 << 20) + 1),
              "n is 1048577; pass 0 to 1048576");
  CHECK(comm.allreduce_sum({value}) == Values{1});  // the communicator remains usable
}
