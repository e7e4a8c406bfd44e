#include "comm/transport.hpp"

#include <cxxabi.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <new>

#include "base/checked.hpp"
#include "base/deadline.hpp"
#include "base/float_order.hpp"
#include "base/log.hpp"
#include "base/text.hpp"

namespace muonrt {

namespace {

constexpr int64_t kShownOperations = 8;

// The flight recorder gets the sizes before they are checked, so a sum may overflow. It then
// becomes INT64_MAX.
int64_t saturated_add(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_add_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}

int64_t saturated_mul(int64_t a, int64_t b) {
  int64_t out = 0;
  return __builtin_mul_overflow(a, b, &out) ? std::numeric_limits<int64_t>::max() : out;
}

Traffic traffic_of(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) {
  Traffic traffic{static_cast<int64_t>(sends.size()), static_cast<int64_t>(receives.size()), 0, 0};
  for (const SendTo& s : sends) traffic.bytes_out = saturated_add(traffic.bytes_out, s.bytes);
  for (const ReceiveFrom& r : receives) traffic.bytes_in = saturated_add(traffic.bytes_in, r.bytes);
  return traffic;
}

}  // namespace

Transport::Transport(int rank, int size) : rank_(rank), size_(size) {
  MUONRT_REQUIRE(size >= 1 && rank >= 0 && rank < size, Status::kInvalidArgument,
                 "communicator: rank ", rank, " of ", size,
                 " ranks does not exist; pass 0 <= rank < size");
  sent_.assign(static_cast<size_t>(size), 0);
  received_.assign(static_cast<size_t>(size), 0);
}

template <class Body>
MUONRT_CATCHES_UNWINDING void Transport::run(OperationKind kind, const Traffic& traffic,
                                             Body body) {
  if (const auto first = error()) {
    if (aborted_from_other_thread_.exchange(false)) publish(*first);
    throw *first;
  }
  operation_ = {kind, operations_++, operations_of_kind_[static_cast<size_t>(kind)]++};
  flight_recorder_.begin(operation_, traffic);
  try {
    body();
  } catch (const abi::__forced_unwind&) {
    flight_recorder_.end(true);
    abort(Status::kAborted, "its thread ended inside a function of the caller");
    throw;
  } catch (...) {
    fail();
  }
  flight_recorder_.end(false);
}

void Transport::fail() {
  const Error error = current_error();
  flight_recorder_.end(true);
  if (keep(error)) publish(error);
  const Error first = *this->error();
  if (first.status() != Status::kTimeout) throw first;
  std::string last;
  try {
    last = cat("; last operations of rank ", rank_, ": ", flight_recorder_.text(kShownOperations));
  } catch (const std::bad_alloc&) {  // out of memory: the message becomes shorter
  }
  throw first.with_context("", last);
}

bool Transport::keep(const Error& error) {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_) return false;
    error_ = error;
  }
  log(LogLevel::kError, [&] {
    return cat("rank ", rank_, ": a communicator has failed (", name(), ", ", size_,
               size_ == 1 ? " rank): " : " ranks): ", status_name(error.status()), ": ",
               error.message());
  });
  return true;
}

std::optional<Error> Transport::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

void Transport::abort(const Error& error) noexcept {
  if (!keep(error)) return;
  aborted_from_other_thread_ = caller_thread_only();
  publish(error);
}

void Transport::abort(Status status, const std::string& message) noexcept {
  const bool usable = status != Status::kOk && status != Status::kSkipped;
  abort(make_error(usable ? status : Status::kAborted, message));
}

void Transport::abort_with_duplicates(Status status, const std::string& message) noexcept {
  abort(status, message);
  duplicates_->abort(status, message);
}

void Transport::set_timeout_ms(int64_t ms) {
  MUONRT_REQUIRE(ms >= 1 && ms <= kMaxTimeoutMs, Status::kInvalidArgument, "communicator: timeout ",
                 ms, " ms is out of range; pass 1 to ", kMaxTimeoutMs);
  timeout_ms_.store(ms, std::memory_order_relaxed);
}

std::string Transport::where() const {
  return cat(name_of(operation_.kind), " #", operation_.sequence, " on rank ", rank_, " (", name(),
             ")");
}

void Transport::check_and_copy_own(std::span<const SendTo> sends,
                                   std::span<const ReceiveFrom> receives) {
  const int64_t mark = operation_.sequence + 1;
  const auto check = [&](const auto& message, std::vector<int64_t>& seen, const char* what) {
    MUONRT_REQUIRE(message.peer >= 0 && message.peer < size_, Status::kInvalidArgument, where(),
                   ": the ", what, message.peer, " is invalid because rank ", message.peer,
                   " does not exist; pass a rank from 0 to ", size_ - 1);
    MUONRT_REQUIRE(message.bytes > 0 && message.data, Status::kInvalidArgument, where(), ": the ",
                   what, message.peer, " has ", message.bytes, " bytes and ",
                   message.data ? "an address" : "the address NULL",
                   "; omit empty messages on both ranks");
    int64_t& last = seen[static_cast<size_t>(message.peer)];
    MUONRT_REQUIRE(last != mark, Status::kInvalidArgument, where(), ": there is a second ", what,
                   message.peer, "; pack all data of a pair into one message");
    last = mark;
  };
  const SendTo* own_send = nullptr;
  const ReceiveFrom* own_receive = nullptr;
  for (const SendTo& s : sends) {
    check(s, sent_, "message to rank ");
    if (s.peer == rank_) own_send = &s;
  }
  for (const ReceiveFrom& r : receives) {
    check(r, received_, "message from rank ");
    if (r.peer == rank_) own_receive = &r;
  }
  const int64_t out = own_send ? own_send->bytes : 0;
  const int64_t in = own_receive ? own_receive->bytes : 0;
  MUONRT_REQUIRE(out == in, Status::kMismatch, where(), ": the rank sends ", out,
                 " bytes to itself and expects ", in, "; pass the same size twice");
  if (!own_send) return;
  if (copy_) {
    (*copy_)(own_receive->data, own_send->data, out);
  } else {
    std::memmove(own_receive->data, own_send->data, static_cast<size_t>(out));
  }
}

void Transport::require_fit(const char* what, int64_t count, int64_t each) const {
  const int64_t most = std::numeric_limits<int64_t>::max() / each / size_;
  MUONRT_REQUIRE(count <= most, Status::kInvalidArgument, where(), ": ", what, " is ", count,
                 ", but must be at most ", most, ", so that the bytes of all ", size_,
                 " ranks fit into 63 bits; pass the number of one rank");
}

void Transport::exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                         const CopyMessage* copy) {
  run(OperationKind::kExchange, traffic_of(sends, receives), [&] {
    MUONRT_CHECK_INTERNAL(!copy || receivers_copy(),
                          "this transport cannot reach the memory of the messages");
    copy_ = copy;
    check_and_copy_own(sends, receives);
    const auto remote = [this](const auto& message) { return message.peer != rank_; };
    if (std::any_of(sends.begin(), sends.end(), remote) ||
        std::any_of(receives.begin(), receives.end(), remote)) {
      do_exchange(sends, receives);
    }
  });
}

void Transport::allgather(const void* mine, void* all, int64_t bytes) {
  run(OperationKind::kAllgather, {size_ - 1, size_ - 1, bytes, saturated_mul(bytes, size_ - 1)},
      [&] {
        MUONRT_REQUIRE(bytes >= 0 && (bytes == 0 || (mine && all)), Status::kInvalidArgument,
                       where(), ": bytes is ", bytes, mine && all ? "" : " and a buffer is NULL",
                       "; pass bytes >= 0 and buffers of bytes and size * bytes");
        require_fit("bytes", bytes, 1);
        if (bytes > 0) do_allgather(mine, all, bytes);
      });
}

void Transport::reduce_max(const float* in, float* out, int64_t n) {
  run(OperationKind::kReduceMax, {1, 1, saturated_mul(n, 4), saturated_mul(n, 4)}, [&] {
    MUONRT_REQUIRE(n >= 0 && (n == 0 || (in && out)), Status::kInvalidArgument, where(), ": n is ",
                   n, in && out ? "" : " and a buffer is NULL",
                   "; pass n >= 0 and buffers of n values");
    require_fit("n", n, 4);
    if (n > 0) do_reduce_max(in, out, n);
  });
}

void Transport::reduce_sum(const int64_t* in, int64_t* out, int64_t n) {
  run(OperationKind::kReduceSum, {1, 1, saturated_mul(n, 8), saturated_mul(n, 8)}, [&] {
    MUONRT_REQUIRE(n >= 0 && (n == 0 || (in && out)), Status::kInvalidArgument, where(), ": n is ",
                   n, in && out ? "" : " and a buffer is NULL",
                   "; pass n >= 0 and buffers of n values");
    require_fit("n", n, 8);
    if (n > 0) do_reduce_sum(in, out, n);
  });
}

std::unique_ptr<Transport> Transport::duplicate() {
  std::unique_ptr<Transport> out;
  DuplicateRegistration registration;
  run(OperationKind::kDuplicate, {}, [&] {
    // Allocates before do_duplicate(), because an error after it would not reach the peers.
    registration.reserve();
    out = do_duplicate();
  });
  out->set_timeout_ms(timeout_ms());
  out->registration_ = std::move(registration);
  out->registration_.join(duplicates_, *out);
  return out;
}

void Transport::prepare_reduction(int64_t bytes) {
  const auto all = static_cast<size_t>(checked_mul(bytes, int64_t{size_}));
  gathered_.resize(std::max(gathered_.size(), all));
}

MUONRT_CATCHES_UNWINDING void Transport::confirm_duplicate(Transport& duplicate) {
  const char mine = 0;
  std::vector<char> all(static_cast<size_t>(size_));
  try {
    do_allgather(&mine, all.data(), 1);
  } catch (const abi::__forced_unwind&) {
    duplicate.abort(Status::kAborted, "its thread ended inside a function of the caller");
    throw;
  } catch (...) {
    duplicate.abort(current_error());
    throw;
  }
}

void Transport::do_reduce_max(const float* in, float* out, int64_t n) {
  const int64_t bytes = checked_mul(n, 4);
  prepare_reduction(bytes);
  do_allgather(in, gathered_.data(), bytes);
  const float* value = reinterpret_cast<const float*>(gathered_.data());
  for (int64_t i = 0; i < n; ++i) {
    int32_t best = ordered_from_f32(value[i]);
    for (int64_t r = 1; r < size_; ++r) best = std::max(best, ordered_from_f32(value[r * n + i]));
    out[i] = f32_from_ordered(best);
  }
}

void Transport::do_reduce_sum(const int64_t* in, int64_t* out, int64_t n) {
  const int64_t bytes = checked_mul(n, 8);
  prepare_reduction(bytes);
  do_allgather(in, gathered_.data(), bytes);
  const int64_t* value = reinterpret_cast<const int64_t*>(gathered_.data());
  for (int64_t i = 0; i < n; ++i) {
    uint64_t sum = 0;
    for (int64_t r = 0; r < size_; ++r) sum += static_cast<uint64_t>(value[r * n + i]);
    out[i] = static_cast<int64_t>(sum);
  }
}

std::string name_ranks(const std::vector<int32_t>& ranks) {
  constexpr size_t kNamed = 8;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(kNamed, ranks.size()); ++i) {
    if (i) out += ", ";
    append(out, ranks[i]);
  }
  if (ranks.size() > kNamed) out += cat(" and ", ranks.size() - kNamed, " more");
  return out;
}

}  // namespace muonrt
