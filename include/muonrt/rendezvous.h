/**
 * @file muonrt/rendezvous.h
 * Communicators for ranks that find each other without MPI: at an address, or in a shared folder.
 *
 * Both functions in this header create communicators over TCP, for data in host memory. The ranks
 * prove to each other that they have the same secret, but their data is neither encrypted nor
 * signed, so use a network that you trust. Every rank except rank 0 connects to rank 0. When two of
 * these ranks exchange data for the first time, the higher rank connects to the lower one or, after
 * rank 0 has left, possibly the lower one to the higher one. If there are more than two ranks,
 * every rank therefore listens on a port. Firewalls must allow connections to these ports; see
 * `first_port`.
 */
#ifndef MUONRT_RENDEZVOUS_H
#define MUONRT_RENDEZVOUS_H

#include "muonrt/base.h"
#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Options of muonrt_comm_create_tcp(). Call muonrt_tcp_options_init() before you set fields.
 *
 * `rank`, `size`, `address`, `secret` and `secret_bytes` are required.
 */
typedef struct muonrt_tcp_options {
  /** Size of the struct in bytes; set by muonrt_tcp_options_init(). */
  uint32_t struct_size;

  /** Rank of the caller, 0 to size - 1. Default: -1, which is invalid. */
  int32_t rank;

  /** Number of ranks, >= 1, equal on all ranks. Default: 0, which is invalid. */
  int32_t size;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * Address of rank 0: "host:port", or "[address]:port" for IPv6. On rank 0, the port may be 0 if
   * `listening` is set; rank 0 then listens on a free port.
   */
  const char* address;

  /**
   * The only network interface to use on this machine, given by its name ("eth0") or one of its
   * addresses. Rank 0 resolves the host in `address`, and listens on the resulting addresses that
   * belong to the interface. If none of the addresses belongs to the interface, rank 0 listens on
   * the interface's first address of the same family. The other ranks connect from the interface.
   * Default: NULL, which means that rank 0 listens on all resulting addresses, and the operating
   * system selects the interface from which each other rank connects.
   */
  const char* interface_name;

  /**
   * `secret_bytes` bytes, equal on all ranks. Use a random value that is new for every run;
   * otherwise ranks of two runs may connect to each other.
   */
  const char* secret;

  /** Size of `secret` in bytes, 16 to 4096. Default: 0, which is invalid. */
  int64_t secret_bytes;

  /**
   * Timeout of muonrt_comm_create_tcp() in ms, 1 to 31622400000 (366 days). Later operations have
   * the timeout that muonrt_comm_set_timeout() sets. Default: 60000.
   */
  int64_t timeout_ms;

  /**
   * A function that rank 0 calls after it has started to listen and before it waits for the other
   * ranks. Its argument `address` contains the actual port. Send this address to the other ranks,
   * for example with MPI_Bcast. If the function returns a value other than 0,
   * muonrt_comm_create_tcp() returns MUONRT_ERROR_CALLBACK. Default: NULL.
   */
  int32_t (*listening)(void* state, const char* address);

  /** The first argument of `listening` and of `interrupted`. Default: NULL. */
  void* state;

  /**
   * The range of ports on which this rank may listen for other ranks, 1 to 65535. Rank 0 uses this
   * range only if the port of `address` is 0. Rank 1 of 2 does not use the range, because no rank
   * connects to it. Ranks on the same machine need different ports. Default: 0 and 0, which means
   * any free port.
   */
  int32_t first_port, last_port;

  /**
   * A function that muonrt_comm_create_tcp() calls about every 100 ms, on the calling thread, while
   * it is waiting. If the function returns a value other than 0, muonrt_comm_create_tcp() returns
   * MUONRT_ERROR_ABORTED. Default: NULL.
   */
  int32_t (*interrupted)(void* state);
} muonrt_tcp_options_t;

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_tcp_options_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_tcp_options_init_sized(muonrt_tcp_options_t* options, uint32_t size);
#define muonrt_tcp_options_init(options) \
  muonrt_tcp_options_init_sized((options), sizeof(muonrt_tcp_options_t))

/**
 * Creates a communicator over TCP whose ranks find each other at an address.
 *
 * Rank 0 listens on `address`, and the other ranks connect to it. They retry until they can resolve
 * the host name in `address` and rank 0 is listening. Rank 0 itself does not retry if it cannot
 * resolve the name. When two ranks exchange data for the first time, the higher rank connects to
 * the lower one, at the address from which the lower rank has connected to rank 0.
 *
 * @code
 * muonrt_tcp_options_t options;
 * muonrt_comm_t* comm;
 * muonrt_tcp_options_init(&options);
 * options.rank = rank;
 * options.size = size;
 * options.address = "node0:29500";
 * options.secret = secret;
 * options.secret_bytes = 32;
 * check(muonrt_comm_create_tcp(&comm, &options));
 * @endcode
 *
 * Threads: any. Collective: over all ranks. Blocking, at most for `timeout_ms`.
 *
 * @par Loopback addresses
 * If /etc/hosts maps the name of rank 0's machine to 127.0.1.1, as on Debian, other machines cannot
 * connect. Pass a numeric address instead, or set `interface_name` on rank 0.
 *
 * @par Security
 * The two ends of a connection prove to each other that they have the same secret, without sending
 * it. The connecting rank sends its proof first. A connection that sends no proof, for example from
 * a port scanner, is closed without an answer. Data is neither encrypted nor signed, so use a
 * network that you trust. muonrt does not read options from environment variables. If all addresses
 * of rank 0 are loopback addresses, the ranks listen only on loopback addresses. Otherwise they
 * listen on all addresses of their machine or, if `interface_name` is set, only on addresses of
 * that interface.
 *
 * @par When rank 0 exits
 * Rank 0 forwards errors to the other ranks, so destroy the communicator of rank 0 last, even after
 * an error. If you destroy it earlier and an error occurs, the other ranks may wait until their
 * timeouts. Also destroy this communicator before the process of rank 0 exits. If the process exits
 * first, all operations of the other ranks return MUONRT_ERROR_COMM.
 *
 * @param[out] comm     The new communicator; NULL on error. Destroy it with muonrt_comm_destroy().
 * @param[in]  options  The options of this rank. muonrt keeps no pointer to them.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, or an option is out of range or malformed;
 *     reported only on this rank;
 *   - MUONRT_ERROR_CALLBACK: `listening` returned an error;
 *   - MUONRT_ERROR_COMM: rank 0 has closed multiple connections of this rank without an answer,
 *     which usually means that the secrets differ; rank 0 cannot resolve or listen on the address;
 *     no port in the range is free; another program answers at the address; or the process is not
 *     allowed to open a file for each rank (raise `ulimit -n`);
 *   - MUONRT_ERROR_ABORTED: `interrupted` returned a value other than 0, on this rank or on rank 0;
 *   - MUONRT_ERROR_MISMATCH, on all ranks: `size` or the version of muonrt differs between ranks, a
 *     rank is out of range, or two processes have the same rank;
 *   - MUONRT_ERROR_TIMEOUT: not all ranks connected before the timeout. On rank 0, the message
 *     names the missing ranks; on the others, it gives the result of the last attempt to connect;
 *   - MUONRT_ERROR_OUT_OF_MEMORY: if it occurs on rank 0, all ranks return it.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_tcp(muonrt_comm_t** comm,
                                                  const muonrt_tcp_options_t* options);

/**
 * Options of muonrt_comm_create_folder(). Call muonrt_folder_options_init() before you set fields.
 *
 * `rank`, `size`, `path` and `run_id` are required.
 */
typedef struct muonrt_folder_options {
  /** Size of the struct in bytes; set by muonrt_folder_options_init(). */
  uint32_t struct_size;

  /** Rank of the caller, 0 to size - 1. Default: -1, which is invalid. */
  int32_t rank;

  /** Number of ranks, >= 1, equal on all ranks. Default: 0, which is invalid. */
  int32_t size;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * Path of a folder that exists and that all ranks can access. A relative path is resolved against
   * the working directory at the time of the call.
   */
  const char* path;

  /**
   * Identifies the run. It must be equal on all ranks and different for every run. It must consist
   * of 1 to 64 of the characters A-Z, a-z, 0-9, '.', '-' and '_', and must not be "." or "..".
   */
  const char* run_id;

  /**
   * Timeout of muonrt_comm_create_folder() in ms, 1 to 31622400000 (366 days). Later operations
   * have the timeout that muonrt_comm_set_timeout() sets. Default: 60000.
   */
  int64_t timeout_ms;

  /**
   * `secret_bytes` bytes, equal on all ranks. Use a random value that is new for every run.
   * Default: NULL. If no secret is set, every process that can read rank 0's file in the folder can
   * connect.
   */
  const char* secret;

  /** Size of `secret` in bytes, 16 to 4096; 0 if `secret` is NULL. Default: 0. */
  int64_t secret_bytes;

  /**
   * The range of ports; see muonrt_tcp_options_t. On each address of its machine, rank 0 listens on
   * a port in the range; the other ranks connect to these ports. Default: 0 and 0, which means any
   * free port.
   */
  int32_t first_port, last_port;

  /** See muonrt_tcp_options_t. Default: NULL. */
  int32_t (*interrupted)(void* state);

  /** The argument of `interrupted`. Default: NULL. */
  void* state;
} muonrt_folder_options_t;

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_folder_options_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_folder_options_init_sized(muonrt_folder_options_t* options, uint32_t size);
#define muonrt_folder_options_init(options) \
  muonrt_folder_options_init_sized((options), sizeof(muonrt_folder_options_t))

/**
 * Creates a communicator over TCP whose ranks find each other in a shared folder.
 *
 * Rank 0 listens on all addresses of its machine, and writes these addresses, the ports and a
 * random number to the file `path`/`run_id`. The other ranks wait for this file and then connect to
 * rank 0. Ranks with the same host name as rank 0 also try the loopback address. Afterwards the
 * ranks no longer use the folder, and the rules of muonrt_comm_create_tcp() apply to the
 * communicator. In particular, the ranks need a network that connects them to rank 0.
 *
 * Threads: any. Collective: over all ranks. Blocking, at most for `timeout_ms`.
 *
 * @par The file
 *   - Rank 0 removes the file before the call returns, even after an error. If the process of rank
 *     0 is killed before the call returns, the file remains, and the next run needs a different
 *     `run_id`.
 *   - Only the user of rank 0 can read the file, so run all ranks as the same user (or root).
 *   - Every process that can read the file can connect, unless you set `secret`. A process that can
 *     write to the folder can make the call fail, even if you set `secret`.
 *
 * @param[out] comm     The new communicator; NULL on error. Destroy it with muonrt_comm_destroy().
 * @param[in]  options  The options of this rank. muonrt keeps no pointer to them.
 *
 * @return The statuses of muonrt_comm_create_tcp() except MUONRT_ERROR_CALLBACK, or
 *   - MUONRT_ERROR_IO: the folder cannot be opened, or the file cannot be written or read;
 *   - MUONRT_ERROR_INVALID_STATE: on rank 0, the file exists already; on the others, the file
 *     belongs to a different user, and this rank is not allowed to read it or has no secret;
 *   - MUONRT_ERROR_CORRUPT: the file is not one that rank 0 has written; check which processes
 *     write to the folder, and whether all ranks use the same version of muonrt;
 *   - MUONRT_ERROR_COMM: the file was written with a different secret or by an earlier run. Rank 0
 *     then continues to wait.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_folder(muonrt_comm_t** comm,
                                                     const muonrt_folder_options_t* options);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_RENDEZVOUS_H */
