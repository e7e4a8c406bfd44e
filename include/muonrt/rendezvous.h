/* muonrt/rendezvous.h - ranks that meet without MPI, at an address or in a shared folder. */
#ifndef MUONRT_RENDEZVOUS_H
#define MUONRT_RENDEZVOUS_H

#include "muonrt/base.h"
#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Both give communicators of host memory over TCP. TCP is for meeting (muonrt/nccl.h takes such a
 * communicator) and for one machine: rank 0 carries every byte. Several machines use MPI, NCCL or
 * the caller's own engine (muonrt/transport.h). Rank 0 calls muonrt_comm_destroy before its process
 * ends, also after an error: else the others may miss what they have yet to hear. */

/* Rank 0 listens at `address`; the others come to it, and try again until it is there and its name
 * is known (rank 0 must know its own at once; where its /etc/hosts has that as 127.0.1.1, as on
 * Debian, give an address or rank 0's interface_name: no other machine reaches it there). */
typedef struct muonrt_tcp_options {
  uint32_t struct_size;
  int32_t rank;               /* 0 <= rank < size; no default: -1 until set */
  int32_t size;               /* >= 1; no default: 0 until set */
  int32_t reserved;           /* 0 */
  const char* address;        /* "host:port" or "[IPv6 address]:port" of rank 0; no default. Port 0
                                 on rank 0, with `listening`: one that is free */
  const char* interface_name; /* use this interface alone, by name ("eth0") or address. Rank 0
                                listens at those addresses of `address` that lie on it, else at
                                its first of the same family; NULL: at all that are its machine's.
                                The others call from it; NULL: from the one that fits */
  const char* secret;         /* the same on all ranks, drawn anew for every run (else ranks of two
                                 runs at one address meet), not to be guessed; no default */
  int64_t secret_bytes;       /* >= 8; no default: 0 until set */
  int64_t timeout_ms; /* for all ranks to come; 60000; later waits: muonrt_comm_set_timeout */
  /* Rank 0: called by its thread once it listens, before it waits: `address` with the port that it
     has, to be told to the others (by MPI_Bcast, say), which come to that; not where it cannot
     listen. Anything but 0 ends the call with CALLBACK. NULL: not called. */
  int32_t (*listening)(void* state, const char* address);
  void* state;
} muonrt_tcp_options_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_tcp_options_init_sized(muonrt_tcp_options_t* tcp, uint32_t size);
#define muonrt_tcp_options_init(tcp) \
  muonrt_tcp_options_init_sized((tcp), sizeof(muonrt_tcp_options_t))

/* Collective over all ranks, blocking. Nothing that *tcp points to is kept.
 * The ends prove that they know the secret without telling it; those who do not, port scanners
 * included, are turned away and disturb nobody. What is said afterwards is neither encrypted nor
 * signed: use a network that you trust. No environment variable is read. The ranks end when rank
 * 0 does; destroy its communicator last.
 * Errors: INVALID_ARGUMENT; CALLBACK; COMM if this rank's secret is not rank 0's (which waits for
 * it and gets TIMEOUT), the address is taken, something else answers there, or rank 0 may not have
 * a file open for each rank; MISMATCH, on all ranks, for unequal sizes or versions, a rank out of
 * range, or two ranks of one number; OUT_OF_MEMORY, of rank 0 on all ranks; TIMEOUT naming the
 * ranks that are missing, or, on the others, what came of the last try to reach rank 0.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_tcp(muonrt_comm_t** comm,
                                                  const muonrt_tcp_options_t* tcp);

/* Ranks that share a folder, as the place where they find rank 0's address. */
typedef struct muonrt_folder_options {
  uint32_t struct_size;
  int32_t rank;       /* 0 <= rank < size; no default: -1 until set */
  int32_t size;       /* >= 1; no default: 0 until set */
  int32_t reserved;   /* 0 */
  const char* path;   /* an existing folder, reached by all ranks; no default */
  const char* run_id; /* tells this run from all others: 1 to 64 of A-Z a-z 0-9 . - _; no default */
  int64_t timeout_ms; /* for all ranks to come; 60000; later waits: muonrt_comm_set_timeout */
  const char* secret; /* the same on all ranks, drawn anew for every run, not to be guessed; NULL:
                         none */
  int64_t secret_bytes; /* >= 8; 0 without a secret; 0 */
} muonrt_folder_options_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_folder_options_init_sized(muonrt_folder_options_t* folder, uint32_t size);
#define muonrt_folder_options_init(folder) \
  muonrt_folder_options_init_sized((folder), sizeof(muonrt_folder_options_t))

/* Collective over all ranks, blocking. Rank 0 listens at free ports of all its machine's addresses
 * and writes these, with a random number, to the file path/run_id. The others read it and come to
 * it; ranks on the same machine (of the same host name) also try the loopback address. From then on
 * everything is as after muonrt_comm_create_tcp, and the folder is not used: ranks that reach each
 * other by no network cannot meet so. Rank 0 removes the file when the meeting ends, well or not;
 * if its process is killed before, the file stays, and the next run needs another run_id. A
 * relative path is that of the call.
 * The file is readable by its user alone, so all ranks run as one user (or root). Who can read it
 * can take part where there is no secret. With a secret nobody takes part who does not know it; who
 * may write to the folder can still end the meeting.
 * Errors: INVALID_ARGUMENT; IO if the folder is not there or its files fail; INVALID_STATE if
 * path/run_id is there already (on rank 0), or is another user's (on the others: one that they may
 * not read, or without a secret any); CORRUPT if it is no file of rank 0; COMM if this rank's
 * secret is not the one that it was written with (rank 0 waits on and gets TIMEOUT); those of
 * muonrt_comm_create_tcp. */
MUONRT_API muonrt_status_t muonrt_comm_create_folder(muonrt_comm_t** comm,
                                                     const muonrt_folder_options_t* folder);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_RENDEZVOUS_H */
