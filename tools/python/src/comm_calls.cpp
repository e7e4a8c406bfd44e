#include <list>

#include "binding.hpp"

namespace binding {
namespace {

nb::list allgather(Comm& comm, nb::bytes mine) {
  Busy busy(comm.busy, "the communicator");
  const size_t bytes = mine.size(), size = static_cast<size_t>(comm.size());
  std::vector<char> all(bytes * size);
  collective(comm.get(), [&, data = mine.c_str()] {
    return muonrt_comm_allgather(all.data(), comm.get(), data, static_cast<int64_t>(bytes));
  });
  nb::list out;
  for (size_t i = 0; i < size; ++i) out.append(nb::bytes(all.data() + i * bytes, bytes));
  return out;
}

std::vector<double> allreduce_sum(Comm& comm, const std::vector<double>& values) {
  Busy busy(comm.busy, "the communicator");
  std::vector<double> sums(values.size());
  collective(comm.get(), [&] {
    return muonrt_comm_allreduce_sum(sums.data(), comm.get(), values.data(),
                                     static_cast<int64_t>(values.size()));
  });
  return sums;
}

/// The row-major, contiguous memory of a Python object that supports the buffer protocol.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      nb::raise_python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return view_.buf; }
  int64_t bytes() const { return view_.len; }

 private:
  Py_buffer view_;
};

using Messages = std::vector<std::pair<int32_t, nb::object>>;

void exchange(Comm& comm, const Messages& sends, const Messages& receives) {
  Busy busy(comm.busy, "the communicator");
  std::list<Buffer> buffers;
  std::vector<muonrt_send_t> out;
  std::vector<muonrt_receive_t> in;
  for (const auto& [peer, object] : sends) {
    const Buffer& buffer = buffers.emplace_back(object, false);
    out.push_back({peer, 0, buffer.data(), buffer.bytes()});
  }
  for (const auto& [peer, object] : receives) {
    const Buffer& buffer = buffers.emplace_back(object, true);
    in.push_back({peer, 0, buffer.data(), buffer.bytes()});
  }
  collective(comm.get(), [&] {
    return muonrt_comm_exchange(comm.get(), out.data(), static_cast<int64_t>(out.size()), in.data(),
                                static_cast<int64_t>(in.size()));
  });
}

}  // namespace

void bind_comm_calls(nb::class_<Comm>& comm) {
  comm.def_prop_ro("rank", &Comm::rank, "Rank of the caller, from 0 to size - 1.")
      .def_prop_ro("size", &Comm::size, "Number of ranks.")
      .def(
          "set_timeout",
          [](Comm& self, double seconds) {
            Busy busy(self.busy, "the communicator");
            check(muonrt_comm_set_timeout(self.get(), static_cast<int64_t>(seconds * 1000.0)));
          },
          nb::arg("seconds"), nb::sig("def set_timeout(self, seconds: float) -> None"),
          "Sets the timeout of all later operations. An operation that does not complete within\n"
          "this time raises TimeoutError. The default is 600 seconds.")
      .def(
          "barrier",
          [](Comm& self) {
            Busy busy(self.busy, "the communicator");
            collective(self.get(), [&] { return muonrt_comm_barrier(self.get()); });
          },
          nb::sig("def barrier(self) -> None"),
          "Waits until every rank has called this method. Collective.")
      .def("allgather", &allgather, nb::arg("mine"),
           nb::sig("def allgather(self, mine: bytes) -> list[bytes]"),
           "Returns the bytes that each rank has passed, in rank order. All ranks must pass the\n"
           "same number of bytes. Collective.")
      .def("allreduce_sum", &allreduce_sum, nb::arg("values"),
           nb::sig("def allreduce_sum(self, values: collections.abc.Sequence[float]) "
                   "-> list[float]"),
           "Returns, for each of the numbers, the sum over all ranks. Use it, for example, for\n"
           "a loss or a count of tokens. All ranks must pass the same number of values.\n"
           "Collective.")
      .def("exchange", &exchange, nb::arg("sends"), nb::arg("receives"),
           nb::sig("def exchange(self, sends: collections.abc.Sequence[tuple[int, typing.Any]], "
                   "receives: collections.abc.Sequence[tuple[int, typing.Any]]) -> None"),
           "Sends messages to other ranks and receives messages from them. Only the ranks that\n"
           "send or receive messages must call this method.\n\n"
           ":param sends: pairs (peer, buffer). There may be only one message for each peer,\n"
           "    and a buffer must not be empty.\n"
           ":param receives: pairs (peer, writable buffer), with the same restrictions.\n\n"
           "Raises MismatchError if the sender and the receiver of a message pass different\n"
           "sizes.")
      .def(
          "abort",
          [](Comm& self, const std::string& message, muonrt_status_t status) {
            self.get();  // throws if the communicator is closed
            // Another thread may close the communicator during the call.
            const std::shared_ptr<muonrt_comm_t> kept = self.handle;
            const GilReleased release;
            check(muonrt_comm_abort(kept.get(), status, message.c_str()));
          },
          nb::arg("message"),
          nb::arg("status") = static_cast<muonrt_status_t>(MUONRT_ERROR_ABORTED),
          nb::sig("def abort(self, message: str, status: int = 52) -> None"),
          "Aborts the communicator: all pending and later calls raise AbortedError on every\n"
          "rank. Any thread may call this method at any time.\n\n"
          ":param message: message of the exception on all ranks.\n"
          ":param status: ``status`` of the exception class that the calls raise instead of\n"
          "    AbortedError. muonrt_comm_abort() lists the statuses that cannot be used.")
      .def(
          "close", [](Comm& self) { self.close(); }, nb::sig("def close(self) -> None"),
          "Closes the communicator. It is destroyed when all optimizers and communicators that\n"
          "were created from it are closed, too.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Comm"))
      .def(
          "__exit__", [](nb::object self, nb::args) { self.attr("close")(); }, nb::arg("args"));
}

}  // namespace binding
