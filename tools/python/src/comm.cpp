#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "binding.hpp"

namespace binding {

Comm::Comm(muonrt_comm_t* raw, std::shared_ptr<muonrt_comm_t> over)
    : handle(raw, [over = std::move(over)](muonrt_comm_t* comm) {
        // Functions in Python are called, and threads that want the GIL end, before it returns.
        nb::gil_scoped_release release;
        muonrt_comm_destroy(comm);
      }) {
  alive<Comm>().insert(this);
}

std::unique_ptr<Comm> created(const std::function<muonrt_status_t(muonrt_comm_t**)>& create) {
  muonrt_comm_t* handle = nullptr;
  {
    nb::gil_scoped_release release;
    check(create(&handle));
  }
  return std::make_unique<Comm>(handle);
}

void close_comms() {
  for (Comm* comm : alive<Comm>())
    if (!comm->busy) comm->close();
}

namespace {

bool on_main_thread() {
  nb::object main = nb::module_::import_("threading").attr("main_thread")().attr("ident");
  return !main.is_none() && nb::cast<unsigned long>(main) == PyThread_get_thread_ident();
}

}  // namespace

muonrt_status_t collective(muonrt_comm_t* comm, const std::function<muonrt_status_t()>& call) {
  if (!on_main_thread()) {
    nb::gil_scoped_release release;
    return check(call());
  }
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  muonrt_status_t status = MUONRT_OK;
  std::string text;
  std::optional<nb::python_error> interrupt;
  {
    nb::gil_scoped_release release;
    std::thread worker([&] {
      status = call();
      if (status != MUONRT_OK && status != MUONRT_SKIPPED) text = muonrt_get_last_error();
      const std::lock_guard<std::mutex> lock(mutex);
      done = true;
      ended.notify_one();
    });
    std::unique_lock<std::mutex> lock(mutex);
    while (!ended.wait_for(lock, std::chrono::milliseconds(50), [&] { return done; })) {
      lock.unlock();
      {
        nb::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) {
          nb::python_error raised;
          if (!interrupt) {
            interrupt.emplace(raised);
            nb::gil_scoped_release again;
            muonrt_comm_abort(comm, MUONRT_ERROR_ABORTED, "interrupted by a signal");
          }
        }
      }
      lock.lock();
    }
    lock.unlock();
    worker.join();
  }
  if (interrupt) throw nb::python_error(*interrupt);
  if (!text.empty()) refuse(status, text);
  return check(status);
}

namespace {

/// A function in Python that is told where rank 0 listens, and what it raised.
struct Listening {
  nb::object call;
  std::optional<nb::python_error> raised;

  static int32_t tell(void* state, const char* address) {
    auto* self = static_cast<Listening*>(state);
    nb::gil_scoped_acquire acquire;
    try {
      self->call(address);
      return 0;
    } catch (nb::python_error& error) {
      self->raised.emplace(error);
      return 1;
    }
  }
};

std::unique_ptr<Comm> over_tcp(int32_t rank, int32_t size, const std::string& address,
                               nb::bytes secret, double timeout,
                               const std::optional<std::string>& interface_name,
                               nb::object listening) {
  muonrt_tcp_options_t tcp;
  muonrt_tcp_options_init(&tcp);
  tcp.rank = rank;
  tcp.size = size;
  tcp.address = address.c_str();
  tcp.secret = secret.c_str();
  tcp.secret_bytes = static_cast<int64_t>(secret.size());
  tcp.timeout_ms = static_cast<int64_t>(timeout * 1000.0);
  if (interface_name) tcp.interface_name = interface_name->c_str();
  Listening told{std::move(listening), {}};
  if (!told.call.is_none()) tcp.listening = Listening::tell;
  tcp.state = &told;
  muonrt_comm_t* handle = nullptr;
  muonrt_status_t status = MUONRT_OK;
  {
    nb::gil_scoped_release release;
    status = muonrt_comm_create_tcp(&handle, &tcp);
  }
  if (told.raised) throw nb::python_error(*told.raised);
  check(status);
  return std::make_unique<Comm>(handle);
}

std::unique_ptr<Comm> over_folder(int32_t rank, int32_t size, const std::string& path,
                                  const std::string& run_id, std::optional<nb::bytes> secret,
                                  double timeout) {
  auto folder = muonrt::detail::filled(muonrt_folder_options_init_sized);
  folder.rank = rank;
  folder.size = size;
  folder.path = path.c_str();
  folder.run_id = run_id.c_str();
  folder.secret = secret ? secret->c_str() : nullptr;
  folder.secret_bytes = secret ? static_cast<int64_t>(secret->size()) : 0;
  folder.timeout_ms = static_cast<int64_t>(timeout * 1000.0);
  return created([&](muonrt_comm_t** out) { return muonrt_comm_create_folder(out, &folder); });
}

/// In Python: what mpi4py can call, whatever MPI it has.
nb::object over_mpi(nb::object comm, double timeout) {
  return nb::module_::import_("muonrt._mpi").attr("comm_of")(comm, timeout);
}

/// A communicator of GPU memory over one of host memory.
std::unique_ptr<Comm> over_host(
    Comm& host, const std::function<muonrt_status_t(muonrt_comm_t**, muonrt_comm_t*)>& create) {
  Busy busy(host.busy, "the communicator");
  muonrt_comm_t* handle = nullptr;
  collective(host.get(), [&] { return create(&handle, host.get()); });
  return std::make_unique<Comm>(handle, host.handle);
}

std::unique_ptr<Comm> over_nccl(Comm& host, int32_t device_index, std::optional<int32_t> max_ctas) {
  auto options = muonrt::detail::filled(muonrt_nccl_options_init_sized);
  options.device_index = device_index;
  if (max_ctas) options.max_ctas = *max_ctas;
  return over_host(host, [&](muonrt_comm_t** out, muonrt_comm_t* comm) {
    return muonrt_comm_create_nccl(out, comm, &options);
  });
}

}  // namespace

std::unique_ptr<Comm> staged(Comm& host, int32_t device_index) {
  return over_host(host, [&](muonrt_comm_t** out, muonrt_comm_t* comm) {
    return muonrt_comm_create_staged(out, comm, device_index);
  });
}

namespace {

struct ThreadGroup {
  std::unique_ptr<muonrt_thread_group_t, decltype(&muonrt_thread_group_destroy)> handle{
      nullptr, muonrt_thread_group_destroy};
  explicit ThreadGroup(int32_t size) {
    muonrt_thread_group_t* raw = nullptr;
    check(muonrt_thread_group_create(&raw, size));
    handle.reset(raw);
  }
};

nb::list allgather(Comm& comm, nb::bytes mine) {
  Busy busy(comm.busy, "the communicator");
  const size_t bytes = mine.size(), size = static_cast<size_t>(comm.size());
  std::vector<char> all(bytes * size);
  collective(comm.get(), [&, data = mine.c_str()] {
    return muonrt_comm_allgather(comm.get(), data, all.data(), static_cast<int64_t>(bytes));
  });
  nb::list out;
  for (size_t i = 0; i < size; ++i) out.append(nb::bytes(all.data() + i * bytes, bytes));
  return out;
}

/// The memory of a Python object with the buffer protocol, row-major and contiguous.
class Buffer {
 public:
  Buffer(nb::handle object, bool writable) {
    if (PyObject_GetBuffer(object.ptr(), &view_, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
      nb::raise_python_error();
  }
  ~Buffer() { PyBuffer_Release(&view_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  muonrt_message_t message(int32_t peer) const { return {peer, 0, view_.buf, view_.len}; }

 private:
  Py_buffer view_;
};

using Messages = std::vector<std::pair<int32_t, nb::object>>;

void exchange(Comm& comm, const Messages& sends, const Messages& receives) {
  Busy busy(comm.busy, "the communicator");
  std::list<Buffer> buffers;
  std::vector<muonrt_message_t> out, in;
  for (const auto& [peer, object] : sends)
    out.push_back(buffers.emplace_back(object, false).message(peer));
  for (const auto& [peer, object] : receives)
    in.push_back(buffers.emplace_back(object, true).message(peer));
  collective(comm.get(), [&] {
    return muonrt_comm_exchange(comm.get(), out.data(), static_cast<int64_t>(out.size()), in.data(),
                                static_cast<int64_t>(in.size()));
  });
}

}  // namespace

void bind_comm(nb::module_& module) {
  nb::class_<Comm>(module, "Comm", nb::is_weak_referenceable(), "A fixed set of ranks that talk")
      .def_static(
          "self", [] { return created(muonrt_comm_create_self); }, "One rank, alone")
      .def_static("tcp", &over_tcp, nb::arg("rank"), nb::arg("size"), nb::arg("address"),
                  nb::arg("secret"), nb::arg("timeout") = 60.0, nb::arg("interface") = nb::none(),
                  nb::arg("listening").none() = nb::none(),
                  "Ranks that meet at rank 0's `address` (\"host:port\"). `secret`: at least 8\n"
                  "bytes, the same on all ranks, new for every run. `timeout`: seconds for all\n"
                  "ranks to come. Rank 0 may give port 0 and takes a free one: listening(address)\n"
                  "is called with it, to tell the others. Collective. Rank 0 ends last.")
      .def_static(
          "folder", &over_folder, nb::arg("rank"), nb::arg("size"), nb::arg("path"),
          nb::arg("run_id"), nb::arg("secret") = nb::none(), nb::arg("timeout") = 60.0,
          "Ranks that meet over TCP and find rank 0's address in the file path/run_id of a\n"
          "folder that all of them reach. run_id: tells this run from all others, 1 to 64\n"
          "of A-Z a-z 0-9 . - _. `secret`: as for tcp; none: who can read the file may\n"
          "take part. `timeout`: seconds for all ranks to come. Collective. Rank 0 ends\n"
          "last.")
      .def_static("mpi", &over_mpi, nb::arg("comm"), nb::arg("timeout") = 60.0,
                  nb::sig("def mpi(comm: object, timeout: float = 60.0) -> Comm"),
                  "Over the ranks of `comm`, an intra-communicator of mpi4py, by any MPI that it\n"
                  "runs on; a duplicate of it is used. `timeout`: seconds for all ranks to come.\n"
                  "MPI_THREAD_SERIALIZED or more is needed: a step calls MPI on a thread of its\n"
                  "own. Collective. Close it on all ranks before MPI.Finalize.")
      .def_static(
          "functions", &from_functions, nb::arg("rank"), nb::arg("size"), nb::arg("exchange"),
          nb::arg("allgather"), nb::arg("name") = "python", nb::arg("caller_thread_only") = true,
          nb::arg("abort").none() = nb::none(), nb::arg("close").none() = nb::none(),
          "Over functions of yours. exchange(sends, receives, timeout) moves lists of\n"
          "(peer, memoryview); allgather(mine, all, timeout) fills `all`, size x\n"
          "len(mine) bytes, in rank order. Both return when that is done, or raise.\n"
          "A view must not be used after the return, nor written where it is sent.\n"
          "abort(message, status) tells the peers, whose calls and this rank's then raise;\n"
          "from any thread, also while another function runs. close() comes last.\n"
          "Optimizers of one such communicator are used in the same order on every rank.")
      .def_static(
          "nccl", &over_nccl, nb::arg("host"), nb::arg("device_index") = 0,
          nb::arg("max_ctas") = nb::none(),
          "For optimizers on CUDA, a GPU for each rank: NCCL. `host`, a communicator of host\n"
          "memory, brings the ranks together. Collective over it.")
      .def_static(
          "staged", &staged, nb::arg("host"), nb::arg("device_index") = 0,
          "For optimizers on CUDA: `host` carries the messages, through pinned host memory.\n"
          "Serves several ranks on one GPU, and one rank alone. Collective over `host`.")
      .def_prop_ro("rank", &Comm::rank)
      .def_prop_ro("size", &Comm::size)
      .def(
          "set_timeout",
          [](Comm& comm, double seconds) {
            check(muonrt_comm_set_timeout(comm.get(), static_cast<int64_t>(seconds * 1000.0)));
          },
          nb::arg("seconds"), "Every wait ends after so long with TimeoutError; 600 by default")
      .def(
          "barrier",
          [](Comm& comm) {
            Busy busy(comm.busy, "the communicator");
            collective(comm.get(), [&] { return muonrt_comm_barrier(comm.get()); });
          },
          "Returns when every rank has called it")
      .def("allgather", &allgather, nb::arg("mine"),
           nb::sig("def allgather(self, mine: bytes) -> list[bytes]"),
           "A list of every rank's bytes; all of one length")
      .def(
          "exchange", &exchange, nb::arg("sends"), nb::arg("receives"),
          "Moves lists of (peer, buffer), at most one for each pair of ranks, none of them empty.\n"
          "MismatchError where a buffer that is sent and the one that receives it differ in size.")
      .def(
          "abort",
          [](Comm& comm, const std::string& message, muonrt_status_t status) {
            nb::gil_scoped_release release;
            check(muonrt_comm_abort(comm.get(), status, message.c_str()));
          },
          nb::arg("message"),
          nb::arg("status") = static_cast<muonrt_status_t>(MUONRT_ERROR_ABORTED),
          "Pending and later calls of every rank end with AbortedError, or with the exception of\n"
          "which `status` is given. From any thread.")
      .def(
          "close", [](Comm& comm) { comm.close(); },
          "Leaves the communicator, once the optimizers made from it are closed too")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Comm"))
      .def(
          "__exit__", [](nb::object self, nb::args) { self.attr("close")(); }, nb::arg("args"));

  nb::class_<ThreadGroup>(module, "ThreadGroup", "The meeting place of ranks that are threads")
      .def(nb::init<int32_t>(), nb::arg("size"))
      .def(
          "comm",
          [](ThreadGroup& group, int32_t rank) {
            return created([&](muonrt_comm_t** out) {
              return muonrt_comm_create_thread(out, group.handle.get(), rank);
            });
          },
          nb::arg("rank"), "The communicator of thread `rank`; each rank is taken once");
}

}  // namespace binding
