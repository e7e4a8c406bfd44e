#pragma once

#include <dlfcn.h>

#include "simulation/scheduler.hpp"

namespace simulation {

/// Returns true on a fiber of a world. Fibers use the simulation's functions instead of the
/// system's.
inline bool inside() { return Scheduler::current() != nullptr; }

/// The function of the C library that a definition in this program replaces.
#define SIMULATION_REAL(name) (reinterpret_cast<decltype(&name)>(dlsym(RTLD_NEXT, #name)))

/// Every simulated system function must call this function first. The call may kill the process or
/// run another fiber.
inline Scheduler& enter_system() {
  Scheduler& s = Scheduler::get();
  s.step();
  s.preempt();
  return s;
}

}  // namespace simulation
