/* Mistakes that the compiler must report, in C99 and C++17. `mistakes` first compiles this file
 * without any mistake, and the compiler must not report a warning. Then it compiles the file with
 * each of the macros below. */
#include <muonrt/dlpack.h>
#include <muonrt/muonrt.h>
#ifdef USE_MPI
#include <muonrt/mpi_comm.h>
#endif

#if !MUONRT_VERSION_AT_LEAST(MUONRT_VERSION_MAJOR, MUONRT_VERSION_MINOR, MUONRT_VERSION_PATCH)
#error "these headers are older than their own version"
#endif
#if MUONRT_VERSION_AT_LEAST(MUONRT_VERSION_MAJOR, MUONRT_VERSION_MINOR, MUONRT_VERSION_PATCH + 1)
#error "these headers are newer than their own version"
#endif
#if MUONRT_VERSION_AT_LEAST(0, 0, 99) && MUONRT_VERSION_AT_LEAST(0, 1, 0)
#define VERSION_COMPARES_IN_PREPROCESSOR
#endif
#ifndef VERSION_COMPARES_IN_PREPROCESSOR
#error "MUONRT_VERSION_AT_LEAST does not compare versions"
#endif

muonrt_status_t calls(muonrt_comm_t* comm, muonrt_optimizer_t* optimizer, const float* constant,
                      float* variable, const void* tensor);
muonrt_status_t calls(muonrt_comm_t* comm, muonrt_optimizer_t* optimizer, const float* constant,
                      float* variable, const void* tensor) {
  muonrt_status_t status = MUONRT_OK;
  enum muonrt_role role = MUONRT_ROLE_MUON;
  enum muonrt_view view = MUONRT_VIEW_NONE;
  enum muonrt_dtype dtype = MUONRT_DTYPE_F32;
  void* data = NULL;
  muonrt_step_args_t args;
  muonrt_step_report_t report;
  muonrt_send_t send;
  muonrt_receive_t receive;
  muonrt_checkpoint_t* checkpoint = NULL;
  int64_t index = 0;

  /* Constant memory can be sent without a cast. */
  send.peer = receive.peer = 0;
  send.reserved = receive.reserved = 0;
  send.bytes = receive.bytes = 4;
  send.data = constant;
#ifdef RECEIVE_INTO_CONSTANT
  receive.data = constant;
#else
  receive.data = variable;
#endif

#ifdef RECEIVES_AS_SENDS
  status |= muonrt_comm_exchange(comm, &receive, 1, &send, 1);
#else
  status |= muonrt_comm_exchange(comm, &send, 1, &receive, 1);
#endif

#ifdef COMM_AS_BUFFER
  status |= muonrt_comm_allgather(comm, variable, constant, 4);
#else
  status |= muonrt_comm_allgather(variable, comm, constant, 4);
#endif

  muonrt_step_args_init(&args);
  muonrt_step_report_init(&report);
#ifdef REPORT_LAST
  status |= muonrt_optimizer_step(optimizer, &args, &report);
#else
  status |= muonrt_optimizer_step(&report, optimizer, &args);
#endif

#ifdef STATE_KIND_AS_FORMAT
  status |= muonrt_optimizer_describe_plan(NULL, 0, NULL, optimizer, MUONRT_STATE_VARIANCE);
#else
  status |= muonrt_optimizer_describe_plan(NULL, 0, NULL, optimizer, MUONRT_FORMAT_JSON);
#endif

#ifdef FORMAT_AS_STATE_KIND
  status |= muonrt_checkpoint_find_tensor(&index, checkpoint, "w", MUONRT_FORMAT_JSON);
#else
  status |= muonrt_checkpoint_find_tensor(&index, checkpoint, "w", MUONRT_STATE_MOMENTUM);
#endif

#ifdef CHECKPOINT_AS_DATA
  status |= muonrt_checkpoint_read(variable, checkpoint, 4, index);
#else
  status |= muonrt_checkpoint_read(variable, 4, checkpoint, index);
#endif

#ifdef ROLE_AS_FORMAT
  status |= muonrt_optimizer_get_trace(NULL, 0, NULL, optimizer, role);
#else
  status |= muonrt_optimizer_get_trace(NULL, 0, NULL, optimizer, MUONRT_FORMAT_TEXT);
#endif

#ifdef STATUS_AS_LOG_LEVEL
  status |= muonrt_set_log(NULL, NULL, MUONRT_SKIPPED);
#else
  status |= muonrt_set_log(NULL, NULL, MUONRT_LOG_OFF);
#endif

#ifdef VIEW_AS_ROLE
  status |= muonrt_routing_resolve(&view, &role, NULL, "w", 2);
#else
  status |= muonrt_routing_resolve(&role, &view, NULL, "w", 2);
#endif

#ifdef ROLE_AS_DEVICE
  status |= muonrt_dlpack_read(&data, &dtype, tensor, "w", MUONRT_ROLE_MUON, 0);
#else
  status |= muonrt_dlpack_read(&data, &dtype, tensor, "w", MUONRT_DEVICE_HOST, 0);
#endif

#ifdef USE_MPI
#ifdef MUONRT_COMM_AS_MPI_COMM
  status |= muonrt_comm_create_mpi(&comm, &comm, 1000);
#else
  status |= muonrt_comm_create_mpi(&comm, MPI_COMM_WORLD, 1000);
#endif
#endif
  return status;
}
