#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "comm/thread_transport.hpp"

// Ranks that are threads of the test.
namespace transport_test {

/// Runs `body(rank)` on `size` threads. Returns the error of each rank. An exception that is not an
/// Error is returned as an Error with the status INTERNAL. `body` must not use Catch2 assertions,
/// which work only in one thread.
inline std::vector<std::optional<muonrt::Error>> on_ranks(int size,
                                                          const std::function<void(int)>& body) {
  std::vector<std::optional<muonrt::Error>> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      auto& error = errors[static_cast<size_t>(rank)];
      try {
        body(rank);
      } catch (const muonrt::Error& e) {
        error = e;
      } catch (const std::exception& e) {
        error.emplace(muonrt::Status::kInternal, e.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// Like on_ranks, but `body` receives the transport of its rank in `group`, with the timeout
/// `timeout_ms`.
inline std::vector<std::optional<muonrt::Error>> on_group(
    muonrt::ThreadGroup& group, int64_t timeout_ms,
    const std::function<void(muonrt::Transport&)>& body) {
  return on_ranks(group.size(), [&](int rank) {
    const auto transport = group.transport(rank);
    transport->set_timeout_ms(timeout_ms);
    body(*transport);
  });
}

/// Runs `body` on another thread. Returns its error.
inline std::optional<muonrt::Error> error_of(const std::function<void()>& body) {
  return on_ranks(1, [&](int) { body(); })[0];
}

/// Returns whether `error` has this status and its message contains `text`.
inline bool is_error(const std::optional<muonrt::Error>& error, muonrt::Status status,
                     const std::string& text) {
  return error && error->status() == status && error->message().find(text) != std::string::npos;
}

/// Joins all errors and problems into one text, which is empty if there are none.
inline std::string text_of(const std::vector<std::optional<muonrt::Error>>& errors) {
  std::string out;
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank]) continue;
    out += "rank " + std::to_string(rank) + ": " + muonrt::status_name(errors[rank]->status()) +
           ": " + errors[rank]->message() + "\n";
  }
  return out;
}

/// Throws `problems` as an Error unless the text is empty.
inline void require_none(const std::string& problems) {
  if (!problems.empty()) throw muonrt::Error(muonrt::Status::kInternal, problems);
}

}  // namespace transport_test
