#pragma once

#include <atomic>
#include <cstring>
#include <memory>

#include "comm/transport.hpp"
#include "muonrt/transport.h"

namespace callback_table {

using namespace muonrt;

/// The state of a caller-supplied transport. The transport's functions forward to `inner`, which is
/// one of muonrt's transports.
struct State {
  std::unique_ptr<Transport> inner;
  std::atomic<int>* destroyed;
};

template <class Body>
muonrt_status_t forward(int64_t timeout_ms, void* state, char* message, int64_t capacity,
                        Body body) {
  Transport& t = *static_cast<State*>(state)->inner;
  try {
    t.set_timeout_ms(timeout_ms);
    body(t);
    return MUONRT_OK;
  } catch (const Error& e) {
    std::strncpy(message, e.what(), static_cast<size_t>(capacity) - 1);
    return static_cast<muonrt_status_t>(e.status());
  }
}

inline muonrt_status_t exchange(void* state, const muonrt_send_t* sends, int64_t n_sends,
                                const muonrt_receive_t* receives, int64_t n_receives,
                                int64_t timeout_ms, char* message, int64_t capacity) {
  return forward(timeout_ms, state, message, capacity, [&](Transport& t) {
    std::vector<SendTo> out;
    std::vector<ReceiveFrom> in;
    for (int64_t i = 0; i < n_sends; ++i) {
      if (sends[i].peer == t.rank())
        throw Error(Status::kInternal, "a message of a rank to itself");
      out.push_back({sends[i].peer, sends[i].data, sends[i].bytes});
    }
    for (int64_t i = 0; i < n_receives; ++i) {
      in.push_back({receives[i].peer, receives[i].data, receives[i].bytes});
    }
    t.exchange(out, in);
  });
}

inline muonrt_status_t allgather(void* state, const void* mine, void* all, int64_t bytes,
                                 int64_t timeout_ms, char* message, int64_t capacity) {
  return forward(timeout_ms, state, message, capacity,
                 [&](Transport& t) { t.allgather(mine, all, bytes); });
}

inline muonrt_status_t reduce_max(void* state, const float* in, float* out, int64_t n,
                                  int64_t timeout_ms, char* message, int64_t capacity) {
  return forward(timeout_ms, state, message, capacity, [&](Transport& t) {
    if (in == out) throw Error(Status::kInternal, "in and out are the same buffer");
    t.reduce_max(in, out, n);
  });
}

inline muonrt_status_t reduce_sum(void* state, const int64_t* in, int64_t* out, int64_t n,
                                  int64_t timeout_ms, char* message, int64_t capacity) {
  return forward(timeout_ms, state, message, capacity, [&](Transport& t) {
    if (in == out) throw Error(Status::kInternal, "in and out are the same buffer");
    t.reduce_sum(in, out, n);
  });
}

inline void abort_all(void* state, muonrt_status_t status, const char* message) {
  static_cast<State*>(state)->inner->abort(static_cast<Status>(status), message);
}

inline muonrt_status_t get_published_error(void* state, char* message, int64_t capacity) {
  const auto error = static_cast<State*>(state)->inner->published_error();
  if (!error) return MUONRT_OK;
  std::strncpy(message, error->what(), static_cast<size_t>(capacity) - 1);
  return static_cast<muonrt_status_t>(error->status());
}

inline void destroy(void* state) {
  auto* const mine = static_cast<State*>(state);
  ++*mine->destroyed;
  delete mine;
}

inline muonrt_status_t duplicate(void* state, muonrt_transport_t* out, int64_t timeout_ms,
                                 char* message, int64_t capacity) {
  return forward(timeout_ms, state, message, capacity, [&](Transport& t) {
    out->state = new State{t.duplicate(), static_cast<State*>(state)->destroyed};
    out->exchange = exchange;
    out->allgather = allgather;
    out->duplicate = duplicate;
    out->abort = abort_all;
    out->destroy = destroy;
    out->get_published_error = get_published_error;
  });
}

/// Returns a transport in which all functions are set and forward to `inner`.
inline muonrt_transport_t table_over(std::unique_ptr<Transport> inner,
                                     std::atomic<int>& destroyed) {
  muonrt_transport_t table;
  muonrt_transport_init(&table);
  table.rank = inner->rank();
  table.size = inner->size();
  table.name = "mine";
  table.state = new State{std::move(inner), &destroyed};
  table.exchange = exchange;
  table.allgather = allgather;
  table.reduce_max = reduce_max;
  table.reduce_sum = reduce_sum;
  table.duplicate = duplicate;
  table.abort = abort_all;
  table.destroy = destroy;
  table.get_published_error = get_published_error;
  return table;
}

}  // namespace callback_table
