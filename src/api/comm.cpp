#include "muonrt/comm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "api/as_status.hpp"
#include "api/handles.hpp"
#include "comm/callback_transport.hpp"
#include "comm/self_transport.hpp"
#include "optimizer/agreement.hpp"

using namespace muonrt;
using api::as_status;
using api::require_pointer;

namespace {

template <class Make>
muonrt_status_t create(muonrt_comm_t** comm, const char* function, Make make) {
  return as_status([&] {
    require_pointer(comm, function, "comm");
    *comm = nullptr;
    *comm = api::release_comm(std::make_unique<muonrt_comm>(make()));
    return Status::kOk;
  });
}

/// Checks that a reserved field is 0, because a later version may use the field.
template <class Message>
void require_reserved_zero(const Message& message, const char* list, int64_t index) {
  MUONRT_REQUIRE(message.reserved == 0, Status::kInvalidArgument, "muonrt_comm_exchange: ", list,
                 "[", index, "].reserved is ", message.reserved, ", but must be 0; set it to 0");
}

}  // namespace

extern "C" {

muonrt_status_t muonrt_comm_create_self(muonrt_comm_t** comm) {
  return create(comm, "muonrt_comm_create_self", [] { return make_self_transport(); });
}

muonrt_status_t muonrt_thread_group_create(muonrt_thread_group_t** group, int32_t size) {
  return as_status([&] {
    require_pointer(group, "muonrt_thread_group_create", "group");
    *group = nullptr;
    MUONRT_REQUIRE(size >= 1 && size <= 4096, Status::kInvalidArgument,
                   "muonrt_thread_group_create: size is ", size,
                   ", but must be between 1 and 4096; pass the number of threads");
    *group = api::release_handle(std::make_unique<muonrt_thread_group>(ThreadGroup(size)));
    return Status::kOk;
  });
}

void muonrt_thread_group_destroy(muonrt_thread_group_t* group) {
  as_status([&] {
    api::destroy_handle(group, "muonrt_thread_group_destroy", "group");
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_create_thread(muonrt_comm_t** comm, muonrt_thread_group_t* group,
                                          int32_t rank) {
  return create(comm, "muonrt_comm_create_thread", [&] {
    return api::unwrap(group, "muonrt_comm_create_thread", "group").transport(rank);
  });
}

muonrt_status_t muonrt_comm_create_callbacks(muonrt_comm_t** comm,
                                             const muonrt_transport_t* transport) {
  CallbackTransport* made = nullptr;
  const auto status = create(comm, "muonrt_comm_create_callbacks", [&] {
    require_pointer(transport, "muonrt_comm_create_callbacks", "transport");
    auto out = std::make_unique<CallbackTransport>(read_transport(transport));
    out->own_state(false);  // until the call succeeds, `state` belongs to the caller
    made = out.get();
    return out;
  });
  if (status == MUONRT_OK) made->own_state(true);
  return status;
}

void muonrt_comm_destroy(muonrt_comm_t* comm) {
  as_status([&] {
    api::destroy_comm(comm);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_get_rank(int32_t* rank, const muonrt_comm_t* comm) {
  return as_status([&] {
    require_pointer(rank, "muonrt_comm_get_rank", "rank");
    auto& c = api::unwrap(comm, "muonrt_comm_get_rank", "comm");
    *rank = c.host.rank();
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_get_size(int32_t* size, const muonrt_comm_t* comm) {
  return as_status([&] {
    require_pointer(size, "muonrt_comm_get_size", "size");
    auto& c = api::unwrap(comm, "muonrt_comm_get_size", "comm");
    *size = c.host.size();
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_set_timeout(muonrt_comm_t* comm, int64_t milliseconds) {
  return as_status([&] {
    auto& c = api::unwrap(comm, "muonrt_comm_set_timeout", "comm");
    c.host.set_timeout_ms(milliseconds);
    if (c.device) c.device->set_timeout_ms(milliseconds);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_abort(muonrt_comm_t* comm, muonrt_status_t status,
                                  const char* message) {
  return as_status([&] {
    const api::CommCall call(comm, "muonrt_comm_abort");
    auto& c = call.body();
    MUONRT_REQUIRE(status >= MUONRT_ERROR_INVALID_ARGUMENT && is_status(status),
                   Status::kInvalidArgument, "muonrt_comm_abort: status is ", status,
                   ", but must be an error of muonrt/base.h; pass MUONRT_ERROR_ABORTED");
    const char* const text = message ? message : "aborted by the caller";
    const auto given = static_cast<Status>(status);
    const bool of_step =
        leaves_optimizer_usable(given) || given == Status::kUndecided || given == Status::kTorn;
    c.abort(of_step ? Status::kAborted : given, text);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_barrier(muonrt_comm_t* comm) {
  return as_status([&] {
    const api::CommCall call(comm, "muonrt_comm_barrier");
    auto& c = call.body();
    const char mine = 0;
    std::vector<char> all;
    run_or_abort(c.host, [&] { all.resize(static_cast<size_t>(c.host.size())); });
    c.host.allgather(&mine, all.data(), 1);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_allgather(void* all, muonrt_comm_t* comm, const void* mine,
                                      int64_t bytes) {
  return as_status([&] {
    const api::CommCall call(comm, "muonrt_comm_allgather");
    auto& c = call.body();
    MUONRT_REQUIRE(bytes >= 0, Status::kInvalidArgument, "muonrt_comm_allgather: bytes is ", bytes,
                   ", but must be 0 or more; pass the size of a block in bytes");
    const int64_t most = std::numeric_limits<int64_t>::max() / c.host.size();
    MUONRT_REQUIRE(bytes <= most, Status::kInvalidArgument, "muonrt_comm_allgather: bytes is ",
                   bytes, ", but must be at most ", most, ", so that the blocks of all ",
                   c.host.size(), " ranks fit into 63 bits; pass the size of a block in bytes");
    if (bytes > 0) {
      require_pointer(mine, "muonrt_comm_allgather", "mine");
      require_pointer(all, "muonrt_comm_allgather", "all");
    }
    c.host.allgather(mine, all, bytes);
    return Status::kOk;
  });
}

muonrt_status_t muonrt_comm_exchange(muonrt_comm_t* comm, const muonrt_send_t* sends,
                                     int64_t n_sends, const muonrt_receive_t* receives,
                                     int64_t n_receives) {
  return as_status([&] {
    const api::CommCall call(comm, "muonrt_comm_exchange");
    auto& c = call.body();
    MUONRT_REQUIRE(
        n_sends >= 0 && n_receives >= 0 && (sends || !n_sends) && (receives || !n_receives),
        Status::kInvalidArgument, "muonrt_comm_exchange: ", n_sends, " sends and ", n_receives,
        " receives, but numbers must not be negative, and a list is NULL only if its number is 0; "
        "pass the lists with their sizes");
    std::vector<SendTo> out;
    std::vector<ReceiveFrom> in;
    run_or_abort(c.host, [&] {
      for (int64_t i = 0; i < n_sends; ++i) {
        require_reserved_zero(sends[i], "sends", i);
        out.push_back({sends[i].peer, sends[i].data, sends[i].bytes});
      }
      for (int64_t i = 0; i < n_receives; ++i) {
        require_reserved_zero(receives[i], "receives", i);
        in.push_back({receives[i].peer, receives[i].data, receives[i].bytes});
      }
    });
    with_comm_error([&] { c.host.transport().exchange(out, in); });
    return Status::kOk;
  });
}

// Every rank gathers the values of all ranks and adds them in rank order, so the results are
// bitwise identical on all ranks and with all transports. The ranks compare the sizes before they
// send values, because some transports detect a difference only after they have written past the
// end of a buffer.
muonrt_status_t muonrt_comm_allreduce_sum(double* sums, muonrt_comm_t* comm, const double* values,
                                          int64_t n) {
  return as_status([&] {
    constexpr int64_t kMaxValues = int64_t{1} << 20, kPartBytes = int64_t{4} << 20;
    const api::CommCall call(comm, "muonrt_comm_allreduce_sum");
    auto& c = call.body();
    MUONRT_REQUIRE(n >= 0 && n <= kMaxValues, Status::kInvalidArgument,
                   "muonrt_comm_allreduce_sum: n is ", n, "; pass 0 to ", kMaxValues);
    if (n > 0) {
      require_pointer(sums, "muonrt_comm_allreduce_sum", "sums");
      require_pointer(values, "muonrt_comm_allreduce_sum", "values");
    }
    const int64_t size = c.host.size();
    const int64_t most = std::clamp<int64_t>(kPartBytes / (8 * size), 1, kMaxValues);
    std::vector<int64_t> sizes;
    std::vector<double> result, all;
    run_or_abort(c.host, [&] {
      sizes.resize(static_cast<size_t>(size));
      result.resize(static_cast<size_t>(n));
      all.resize(static_cast<size_t>(std::min(most, n) * size));
    });
    c.host.allgather(&n, sizes.data(), sizeof n);
    run_or_abort(c.host, [&] {
      for (size_t r = 1; r < sizes.size(); ++r)
        MUONRT_REQUIRE(sizes[r] == sizes[0], Status::kMismatch,
                       "muonrt_comm_allreduce_sum: n differs between ranks: ", sizes[0],
                       " on rank 0, ", sizes[r], " on rank ", r, "; pass the same n on all ranks");
    });
    for (int64_t begin = 0; begin < n; begin += most) {
      const int64_t count = std::min(most, n - begin);
      c.host.allgather(values + begin, all.data(), 8 * count);
      for (int64_t i = 0; i < count; ++i) {
        double sum = all[static_cast<size_t>(i)];
        for (int64_t r = 1; r < size; ++r) sum += all[static_cast<size_t>(r * count + i)];
        // The sign and payload of the NaN that an addition returns depend on the processor, so
        // every NaN is replaced with the same NaN.
        if (std::isnan(sum)) sum = std::numeric_limits<double>::quiet_NaN();
        result[static_cast<size_t>(begin + i)] = sum;
      }
    }
    std::copy(result.begin(), result.end(), sums);
    return Status::kOk;
  });
}

}  // extern "C"
