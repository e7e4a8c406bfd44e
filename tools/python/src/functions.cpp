#include "binding.hpp"

namespace binding {
namespace {

/// The Python functions of a communicator; see muonrt/transport.h.
struct Functions {
  nb::object exchange, allgather, abort, close;  // `abort` and `close` may be None
  int32_t size;
};

nb::object view_of_memory(void* data, int64_t bytes) {
  return nb::steal(PyMemoryView_FromMemory(static_cast<char*>(data), bytes, PyBUF_WRITE));
}

/// Returns pairs (peer, memoryview) from messages of type muonrt_send_t or muonrt_receive_t.
template <class Message>
nb::list views_of(const Message* messages, int64_t n) {
  nb::list out;
  for (int64_t i = 0; i < n; ++i)
    out.append(nb::make_tuple(
        messages[i].peer, view_of_memory(const_cast<void*>(messages[i].data), messages[i].bytes)));
  return out;
}

/// Acquires the GIL and runs `call`. If `call` throws, returns the status of the exception and
/// writes its text to `message`.
muonrt_status_t as_status(const char* what, char* message, int64_t capacity,
                          const std::function<void()>& call) {
  const GilAcquired acquire;
  try {
    or_sleep(call);
    return MUONRT_OK;
  } catch (nb::python_error& error) {
    muonrt_status_t status = MUONRT_ERROR_COMM;
    if (error.matches(PyExc_TimeoutError)) status = MUONRT_ERROR_TIMEOUT;
    nb::object own = nb::getattr(error.value(), "status", nb::none());
    const bool named = nb::isinstance<nb::int_>(own);  // an exception class of muonrt
    if (named) status = nb::cast<int32_t>(own);
    const nb::str words(error.value());
    const nb::str type(error.type().attr("__name__"));
    const std::string text =
        named ? words.c_str() : cat(what, ": ", type.c_str(), ": ", words.c_str());
    std::snprintf(message, static_cast<size_t>(capacity), "%s", text.c_str());
    return status;
  } catch (const std::exception& error) {
    std::snprintf(message, static_cast<size_t>(capacity), "%s: %s", what, error.what());
    return MUONRT_ERROR_COMM;
  }
}

muonrt_status_t call_exchange(void* state, const muonrt_send_t* sends, int64_t n_sends,
                              const muonrt_receive_t* receives, int64_t n_receives,
                              int64_t timeout_ms, char* message, int64_t capacity) {
  return as_status("exchange", message, capacity, [&] {
    static_cast<Functions*>(state)->exchange(views_of(sends, n_sends),
                                             views_of(receives, n_receives),
                                             static_cast<double>(timeout_ms) / 1000.0);
  });
}

muonrt_status_t call_allgather(void* state, const void* mine, void* all, int64_t bytes,
                               int64_t timeout_ms, char* message, int64_t capacity) {
  return as_status("allgather", message, capacity, [&] {
    auto* functions = static_cast<Functions*>(state);
    functions->allgather(view_of_memory(const_cast<void*>(mine), bytes),
                         view_of_memory(all, bytes * functions->size),
                         static_cast<double>(timeout_ms) / 1000.0);
  });
}

/// Acquires the GIL and runs `call`. Python prints an exception, because no caller can receive it.
void call_quietly(const char* what, const std::function<void()>& call) {
  const GilAcquired acquire;
  try {
    or_sleep(call);
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(what);
  }
}

void call_abort(void* state, muonrt_status_t status, const char* message) {
  if (Py_IsInitialized() == 0) return;
  call_quietly("abort of a communicator", [&] {
    // The library may have truncated the text in the middle of a UTF-8 character.
    const nb::object text = nb::bytes(message).attr("decode")("utf-8", "replace");
    static_cast<Functions*>(state)->abort(text, status);
  });
}

void destroy_functions(void* state) {
  if (Py_IsInitialized() == 0) return;
  call_quietly("close of a communicator", [&] {
    const std::unique_ptr<Functions> functions(static_cast<Functions*>(state));
    if (!functions->close.is_none()) functions->close();
  });
}

}  // namespace

std::unique_ptr<Comm> from_functions(int32_t rank, int32_t size, nb::object exchange,
                                     nb::object allgather, const std::string& name,
                                     bool caller_thread_only, nb::object abort, nb::object close) {
  auto functions = std::make_unique<Functions>(Functions{std::move(exchange), std::move(allgather),
                                                         std::move(abort), std::move(close), size});
  muonrt_transport_t transport;
  muonrt_transport_init(&transport);
  transport.rank = rank;
  transport.size = size;
  transport.caller_thread_only = caller_thread_only;
  transport.name = name.c_str();
  transport.state = functions.get();
  transport.exchange = call_exchange;
  transport.allgather = call_allgather;
  if (!functions->abort.is_none()) transport.abort = call_abort;
  transport.destroy = destroy_functions;
  auto comm =
      created([&](muonrt_comm_t** out) { return muonrt_comm_create_callbacks(out, &transport); });
  functions.release();
  return comm;
}

}  // namespace binding
