"""Collects episodes with a policy, and caches the programs that act."""

from tf_reinforce.engine.collect import acting_program

_PROGRAMS = 8  # programs of each kind that are kept


class Collector:
    """Collects whole episodes, in which normalizer, policy and head select the actions.

    A program selects actions, or runs whole episodes. The collector makes each program at
    its first use, and then keeps the program in a cache.

    Args:
        actor: `actor.ActorPolicy` that selects the actions.

    Attributes:
        programs: Dict from results of `environments.Environments.program_key` to cached
            programs. The program that was used last is the last entry.
    """

    def __init__(self, actor):
        self.actor = actor
        self.programs = {}

    def collect(self, envs, request):
        """Collects the requested episodes, and returns `environments.CollectedEpisodes`.

        Args:
            envs: `environments.Environments`.
            request: `environments.CollectionRequest`.
        """
        return envs.collect(self.actor, *self.prepare(envs, request))

    def evaluate(self, envs, request):
        """Collects episodes, and returns their `episode_statistics.batch_metrics`."""
        request = request._replace(recorded=False)
        return envs.evaluate(self.actor, *self.prepare(envs, request))

    def prepare(self, envs, request):
        """Returns the program for a request, and the request with the current weights."""
        with self.actor.lock:
            request = request._replace(weights=acting_program.read_weights(self.actor))
            return self.program(envs, request), request

    def program(self, envs, request):
        """Returns the cached program for a `CollectionRequest`, or makes a new one."""
        key = envs.program_key(request)
        with self.actor.lock:
            program = self.programs.pop(key, None)
            self.programs[key] = program or envs.make_program(self.actor, request)
            kind, *_ = key
            same_kind = [other for other in self.programs if other[0] == kind]
            if len(same_kind) > _PROGRAMS:
                del self.programs[same_kind[0]]
            return self.programs[key]
