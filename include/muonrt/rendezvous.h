/* muonrt/rendezvous.h - ranks that meet without MPI: over TCP, or in a shared folder. */
#ifndef MUONRT_RENDEZVOUS_H
#define MUONRT_RENDEZVOUS_H

#include "muonrt/base.h"
#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Both give communicators of host memory, made to bring ranks together (muonrt/nccl.h takes one)
 * and to serve tests and small runs; all messages pass rank 0, or the file system. Use MPI or NCCL
 * for the bulk. */

/* Rank 0 listens at `address`; the others come to it, and try again until it is there and its name
 * is known (rank 0 must know its own at once; where its /etc/hosts has that as 127.0.1.1, as on
 * Debian, give an address or rank 0's interface_name: no other machine reaches it there). */
typedef struct muonrt_tcp {
  uint32_t struct_size;
  int32_t rank;               /* 0 <= rank < size; no default: -1 until set */
  int32_t size;               /* >= 1; no default: 0 until set */
  int32_t reserved;           /* 0 */
  const char* address;        /* "host:port" or "[IPv6 address]:port" of rank 0; no default */
  const char* interface_name; /* use this interface alone, by name ("eth0") or address. Rank 0
                                listens at those addresses of `address` that lie on it, else at
                                its first of the same family; NULL: at all that are its machine's.
                                The others call from it; NULL: from the one that fits */
  const char* secret;         /* the same on all ranks, drawn anew for every run (else ranks of two
                                 runs at one address meet), not to be guessed; no default */
  int64_t secret_bytes;       /* >= 8; no default: 0 until set */
  int64_t timeout_ms; /* for all ranks to come; 60000; later waits: muonrt_comm_set_timeout */
} muonrt_tcp_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_tcp_init(muonrt_tcp_t* tcp);
MUONRT_API void muonrt_tcp_init_sized(muonrt_tcp_t* tcp, uint32_t size);
#define muonrt_tcp_init(tcp) muonrt_tcp_init_sized((tcp), sizeof(muonrt_tcp_t))

/* Collective over all ranks, blocking. The ends prove that they know the secret without telling it;
 * those who do not, port scanners included, are turned away and disturb nobody. What is said
 * afterwards is neither encrypted nor signed: use a network that you trust. No environment variable
 * is read. The ranks end when rank 0 does; destroy its communicator last.
 * Errors: INVALID_ARGUMENT; COMM if this rank's secret is not rank 0's (which waits for it and
 * gets TIMEOUT), the address is taken, something else answers there, or rank 0 may not have a file
 * open for each rank; MISMATCH, on all ranks, for unequal sizes or versions, a rank out of range,
 * or two ranks of one number; TIMEOUT naming the ranks that are missing, or, on the others, what
 * came of the last try to reach rank 0.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_tcp(muonrt_comm_t** comm, const muonrt_tcp_t* tcp);

/* Ranks that share a folder. */
typedef struct muonrt_folder {
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
} muonrt_folder_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_folder_init(muonrt_folder_t* folder);
MUONRT_API void muonrt_folder_init_sized(muonrt_folder_t* folder, uint32_t size);
#define muonrt_folder_init(folder) muonrt_folder_init_sized((folder), sizeof(muonrt_folder_t))

/* Collective over all ranks, blocking. Files of the run lie in path/run_id, which rank 0 makes with
 * access for its user alone, and the last rank removes; after a meeting that failed they stay, and
 * the next try needs another run_id. A relative path is that of the call: a later chdir changes
 * nothing. A peer whose process dies, while the ranks meet or later, is noticed at once (COMM)
 * where the file system's locks reach its machine, else by timeouts (so where a child that it has
 * forked lives on without exec).
 * With a secret rank 0 and the others prove to each other that they know it, without telling it:
 * who may write to the folder and does not know it can end the meeting, but not take part. Without
 * one a folder that another user has made is refused, and who writes as this user may pose as any
 * rank. Messages after the meeting are files, neither signed nor encrypted: who may write to the
 * folder (this user and root, on every machine that reaches it) can read and change them.
 * Errors: INVALID_ARGUMENT; INVALID_STATE if path/run_id is there already (an earlier run), is
 * another user's, or two processes say they are the same rank; COMM if this rank's secret is not
 * rank 0's (which waits for it and gets TIMEOUT); on all ranks, by the name of the rank, MISMATCH
 * for unequal sizes, versions or numbers, CORRUPT for what it wrote cut short, COMM if its process
 * has ended, TIMEOUT if it is missing (to hear that, a rank that sees rank 0's lock waits up to 2 s
 * past its own deadline; one that has given up by then names nobody); IO. */
MUONRT_API muonrt_status_t muonrt_comm_create_folder(muonrt_comm_t** comm,
                                                     const muonrt_folder_t* folder);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_RENDEZVOUS_H */
