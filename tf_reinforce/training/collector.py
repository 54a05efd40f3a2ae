"""Collects episodes with a policy, and caches the programs that act."""

_PROGRAMS = 8  # programs of each kind that are kept


class Collector:
    """Collects whole episodes with normalizer, policy and head.

    An acting program is traced and converted at its first use, and then cached.

    Args:
        actor: `actor.ActorPolicy`.

    Attributes:
        programs: Dict from `environments.Environments.program_key` to a program, in the
            order of the last use.
    """

    def __init__(self, actor):
        self.actor = actor
        self.programs = {}

    def collect(self, envs, request):
        """Returns the `results.CollectedEpisodes` of a request.

        Args:
            envs: `environments.Environments`.
            request: `environments.CollectionRequest`.
        """
        return envs.collect(self.actor, self.program(envs, request), request)

    def evaluate(self, envs, request):
        """Returns the `episode_statistics.batch_metrics` of the requested episodes."""
        request = request._replace(recorded=False)
        return envs.evaluate(self.actor, self.program(envs, request), request)

    def program(self, envs, request):
        """Returns the program for a request, from the cache or newly made."""
        key = envs.program_key(request)
        program = self.programs.pop(key, None)
        self.programs[key] = program or envs.make_program(self.actor, request)
        kind, *_ = key
        same_kind = [other for other in self.programs if other[0] == kind]
        if len(same_kind) > _PROGRAMS:
            del self.programs[same_kind[0]]
        return self.programs[key]
