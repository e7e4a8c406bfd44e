#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "binding.hpp"

namespace binding {

Comm::Comm(muonrt_comm_t* raw, std::shared_ptr<muonrt_comm_t> over)
    : handle(raw, [over = std::move(over)](muonrt_comm_t* comm) {
        // muonrt_comm_destroy() calls Python functions and waits for threads that need the GIL.
        const GilReleased release;
        muonrt_comm_destroy(comm);
      }) {
  alive<Comm>().insert(this);
}

std::unique_ptr<Comm> created(const std::function<muonrt_status_t(muonrt_comm_t**)>& create) {
  muonrt_comm_t* handle = nullptr;
  {
    const GilReleased release;
    check(create(&handle));
  }
  return std::make_unique<Comm>(handle);
}

namespace {

bool on_main_thread() {
  return or_sleep([] {
    nb::object main = nb::module_::import_("threading").attr("main_thread")().attr("ident");
    return !main.is_none() && nb::cast<unsigned long>(main) == PyThread_get_thread_ident();
  });
}

}  // namespace

muonrt_status_t collective(muonrt_comm_t* comm, const std::function<muonrt_status_t()>& call) {
  if (!on_main_thread()) {
    const GilReleased release;
    return check(call());
  }
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  muonrt_status_t status = MUONRT_OK;
  std::string text;
  std::optional<nb::python_error> interrupt;
  {
    const GilReleased release;
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
        const GilAcquired acquire;
        if (PyErr_CheckSignals() != 0) {
          nb::python_error raised;
          if (!interrupt) {
            interrupt.emplace(raised);
            const GilReleased again;
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

/// The Python functions that a rendezvous calls, and the exception that one of them has raised.
struct RendezvousCallbacks {
  nb::object listening;
  std::optional<nb::python_error> raised;

  template <class Call>
  int32_t run(const Call& call) {
    const GilAcquired acquire;
    try {
      or_sleep(call);
      return 0;
    } catch (nb::python_error& error) {
      raised.emplace(error);
      return 1;
    }
  }
  static int32_t call_listening(void* state, const char* address) {
    auto* self = static_cast<RendezvousCallbacks*>(state);
    return self->run([&] { self->listening(address); });
  }
  /// Raises the exception of a signal, such as KeyboardInterrupt.
  static int32_t interrupted(void* state) {
    return static_cast<RendezvousCallbacks*>(state)->run([] {
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    });
  }
};

/// Calls `create(&handle, &options)` without the GIL.
template <class Options, class Create>
std::unique_ptr<Comm> connected(Options& options, nb::object listening,
                                const std::optional<std::pair<int32_t, int32_t>>& ports,
                                const Create& create) {
  RendezvousCallbacks callbacks{std::move(listening), {}};
  if (ports) std::tie(options.first_port, options.last_port) = *ports;
  options.interrupted = RendezvousCallbacks::interrupted;
  options.state = &callbacks;
  muonrt_comm_t* handle = nullptr;
  muonrt_status_t status = MUONRT_OK;
  {
    const GilReleased release;
    status = create(&handle, &options);
  }
  if (callbacks.raised) throw nb::python_error(*callbacks.raised);
  check(status);
  return std::make_unique<Comm>(handle);
}

/// Returns the text as a C string. Rejects a text that contains a NUL, because C would truncate it
/// there.
const char* c_text(const std::string& text, const char* name) {
  if (text.find('\0') != text.npos)
    throw nb::value_error((std::string(name) + " contains a NUL character; remove it").c_str());
  return text.c_str();
}

std::unique_ptr<Comm> over_tcp(int32_t rank, int32_t size, const std::string& address,
                               nb::bytes secret, double timeout,
                               const std::optional<std::string>& interface_name,
                               nb::object listening,
                               const std::optional<std::pair<int32_t, int32_t>>& ports) {
  auto tcp = muonrt::detail::filled(muonrt_tcp_options_init_sized);
  tcp.rank = rank;
  tcp.size = size;
  tcp.address = c_text(address, "address");
  tcp.secret = secret.c_str();
  tcp.secret_bytes = static_cast<int64_t>(secret.size());
  tcp.timeout_ms = static_cast<int64_t>(timeout * 1000.0);
  if (interface_name) tcp.interface_name = c_text(*interface_name, "interface");
  if (!listening.is_none()) tcp.listening = RendezvousCallbacks::call_listening;
  return connected(tcp, std::move(listening), ports, muonrt_comm_create_tcp);
}

std::unique_ptr<Comm> over_folder(int32_t rank, int32_t size, const std::string& path,
                                  const std::string& run_id, std::optional<nb::bytes> secret,
                                  double timeout,
                                  const std::optional<std::pair<int32_t, int32_t>>& ports) {
  auto folder = muonrt::detail::filled(muonrt_folder_options_init_sized);
  folder.rank = rank;
  folder.size = size;
  folder.path = c_text(path, "path");
  folder.run_id = c_text(run_id, "run_id");
  folder.secret = secret ? secret->c_str() : nullptr;
  folder.secret_bytes = secret ? static_cast<int64_t>(secret->size()) : 0;
  folder.timeout_ms = static_cast<int64_t>(timeout * 1000.0);
  return connected(folder, nb::none(), ports, muonrt_comm_create_folder);
}

/// Uses mpi4py through Python, so that the module does not depend on a particular MPI library.
nb::object over_mpi(nb::object comm, double timeout) {
  return nb::module_::import_("muonrt._mpi").attr("comm_of")(comm, timeout);
}

/// Creates a communicator for GPU memory over `host`, which is a communicator for host memory.
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

}  // namespace

void bind_comm(nb::module_& module) {
  nb::class_<Comm> comm(
      module, "Comm", nb::is_weak_referenceable(),
      "A communicator: a fixed set of ranks that exchange data.\n\n"
      "Some methods are collective, which means that every rank must call them. Any thread may\n"
      "call abort() at any time, but only one thread at a time may use the other methods. If a\n"
      "second thread calls one of them in the meantime, the call raises InvalidStateError.");
  comm.def_static(
          "self", [] { return created(muonrt_comm_create_self); }, nb::sig("def self() -> Comm"),
          "Creates a communicator that has only one rank.")
      .def_static("tcp", &over_tcp, nb::arg("rank"), nb::arg("size"), nb::arg("address"),
                  nb::arg("secret"), nb::arg("timeout") = 60.0, nb::arg("interface") = nb::none(),
                  nb::arg("listening").none() = nb::none(), nb::arg("ports") = nb::none(),
                  nb::sig("def tcp(rank: int, size: int, address: str, secret: bytes, "
                          "timeout: float = 60.0, interface: str | None = None, "
                          "listening: collections.abc.Callable[[str], object] | None = None, "
                          "ports: tuple[int, int] | None = None) -> Comm"),
                  "Creates a communicator over TCP. Collective. The ranks first connect to rank\n"
                  "0. Later, ranks that exchange data connect to each other directly. When a\n"
                  "connection is made, both ends prove that they have the same secret. Data is\n"
                  "neither encrypted nor signed.\n\n"
                  ":param address: address of rank 0, as \"host:port\". On rank 0 the port may\n"
                  "    be 0 if listening is set. Rank 0 then listens on a free port.\n"
                  ":param secret: at least 16 bytes, equal on all ranks. Use a random value\n"
                  "    that is new for every run.\n"
                  ":param timeout: time in seconds within which all ranks must connect.\n"
                  ":param interface: name or address of the network interface to use.\n"
                  ":param listening: a function. Rank 0 calls listening(address) with the\n"
                  "    actual address before it waits for the other ranks, so that you can send\n"
                  "    them the address.\n"
                  ":param ports: first and last port of the range in which this rank may listen\n"
                  "    for other ranks. None selects any free port.\n\n"
                  "The process of rank 0 must end last, because rank 0 forwards errors to the\n"
                  "other ranks.")
      .def_static(
          "folder", &over_folder, nb::arg("rank"), nb::arg("size"), nb::arg("path"),
          nb::arg("run_id"), nb::arg("secret") = nb::none(), nb::arg("timeout") = 60.0,
          nb::arg("ports") = nb::none(),
          nb::sig("def folder(rank: int, size: int, path: str, run_id: str, "
                  "secret: bytes | None = None, timeout: float = 60.0, "
                  "ports: tuple[int, int] | None = None) -> Comm"),
          "Creates a communicator over TCP. The ranks find the address of rank 0 in a shared\n"
          "folder. Collective.\n\n"
          ":param path: a folder that all ranks can access. Rank 0 writes the file path/run_id.\n"
          ":param run_id: a name that is equal on all ranks and different for every run. It has\n"
          "    1 to 64 characters of A-Z, a-z, 0-9, '.', '-' and '_'.\n"
          ":param secret: the same as in tcp(). Without a secret, every process that can read\n"
          "    the file can connect.\n"
          ":param timeout: time in seconds within which all ranks must connect.\n"
          ":param ports: the same as in tcp().\n\n"
          "The process of rank 0 must end last, because rank 0 forwards errors to the other\n"
          "ranks.")
      .def_static(
          "mpi", &over_mpi, nb::arg("comm"), nb::arg("timeout") = 60.0,
          nb::sig("def mpi(comm: object, timeout: float = 60.0) -> Comm"),
          "Creates a communicator over the ranks of an intracommunicator of mpi4py. It uses the\n"
          "MPI library that mpi4py uses. Collective.\n\n"
          ":param comm: the intracommunicator. muonrt duplicates it and uses only the\n"
          "    duplicate.\n"
          ":param timeout: time in seconds within which all ranks must take part.\n\n"
          "MPI must provide MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, because steps call\n"
          "MPI from a thread of muonrt. Close the communicator on all ranks before\n"
          "MPI.Finalize().")
      .def_static(
          "functions", &from_functions, nb::arg("rank"), nb::arg("size"), nb::arg("exchange"),
          nb::arg("allgather"), nb::arg("name") = "python", nb::arg("caller_thread_only") = true,
          nb::arg("abort").none() = nb::none(), nb::arg("close").none() = nb::none(),
          nb::sig("def functions(rank: int, size: int, "
                  "exchange: collections.abc.Callable[..., object], "
                  "allgather: collections.abc.Callable[..., object], name: str = 'python', "
                  "caller_thread_only: bool = True, "
                  "abort: collections.abc.Callable[[str, int], object] | None = None, "
                  "close: collections.abc.Callable[[], object] | None = None) -> Comm"),
          "Creates a communicator that calls your functions to exchange data; see\n"
          "muonrt_transport_t.\n\n"
          ":param exchange: exchange(sends, receives, timeout) sends the messages in sends and\n"
          "    receives those in receives. Both are lists of pairs (peer, memoryview). timeout\n"
          "    is in seconds.\n"
          ":param allgather: allgather(mine, all, timeout) copies the memoryview mine of every\n"
          "    rank to the memoryview all, in rank order. all has size x len(mine) bytes.\n"
          ":param name: name of the transport in messages.\n"
          ":param caller_thread_only: True if muonrt may call the functions only from threads\n"
          "    that are inside a call of muonrt. With False, muonrt also calls them from its\n"
          "    own threads.\n"
          ":param abort: abort(message, status) reports an error to all ranks, whose calls must\n"
          "    then end. muonrt may call it from any thread, even while another function runs.\n"
          ":param close: muonrt calls close() once, after all other calls.\n\n"
          "exchange and allgather return when the operation is complete. If it fails, they\n"
          "raise an exception. They must not write to a memoryview that is sent, and must not\n"
          "use a memoryview after they have returned. If several optimizers use such a\n"
          "communicator, every rank must use them in the same order.")
      .def_static(
          "nccl", &over_nccl, nb::arg("host"), nb::arg("device_index") = 0,
          nb::arg("max_ctas") = nb::none(),
          nb::sig("def nccl(host: Comm, device_index: int = 0, "
                  "max_ctas: int | None = None) -> Comm"),
          "Creates a communicator that exchanges GPU memory through NCCL. Each rank needs its\n"
          "own GPU. Collective over host.\n\n"
          ":param host: a communicator for host memory that has the same ranks.\n"
          ":param device_index: CUDA device index of this rank's GPU.\n"
          ":param max_ctas: maximum number of thread blocks that an NCCL operation uses.")
      .def_static(
          "staged", &staged, nb::arg("host"), nb::arg("device_index") = 0,
          nb::sig("def staged(host: Comm, device_index: int = 0) -> Comm"),
          "Creates a communicator that copies GPU memory to pinned host memory and sends it\n"
          "over host. Several ranks may share a GPU. Collective over host.\n\n"
          ":param host: a communicator for host memory that has the same ranks.\n"
          ":param device_index: CUDA device index of this rank's GPU.");
  bind_comm_calls(comm);

  nb::class_<ThreadGroup>(module, "ThreadGroup",
                          "A group of ranks that are threads of this process.")
      .def(nb::init<int32_t>(), nb::arg("size"), nb::sig("def __init__(self, size: int) -> None"),
           "Creates a group with this number of ranks.")
      .def(
          "comm",
          [](ThreadGroup& group, int32_t rank) {
            return created([&](muonrt_comm_t** out) {
              return muonrt_comm_create_thread(out, group.handle.get(), rank);
            });
          },
          nb::arg("rank"), nb::sig("def comm(self, rank: int) -> Comm"),
          "Creates the communicator of a rank. Call it only once for each rank.");
}

}  // namespace binding
