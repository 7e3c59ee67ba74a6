"""Where object storage is, said once, as each of those who reach it wants to hear it.

Who may read and write is not said here: AWS's own variables, files and roles say that to all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SCHEME = "s3://"
_ANY_REGION = "us-east-1"  # stores other than Amazon's take any, and clients want one
_S3A = "spark.hadoop.fs.s3a"


@dataclass(frozen=True)
class ObjectStore:
    """An S3-compatible store: `endpoint`, such as `https://minio:9000`, and `region`. Neither: Amazon's own, by its variables.

    Buckets of an endpoint are named in the path of a request, as in `https://minio:9000/bucket/key`.
    """

    endpoint: str | None = None
    region: str | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that Arrow and boto3 read."""
        named = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": self._region, "AWS_DEFAULT_REGION": self._region}
        return {name: value for name, value in named.items() if value}

    @property
    def catalog_properties(self) -> Mapping[str, str]:
        """What pyiceberg reads: it knows none of these variables."""
        named = {"s3.endpoint": self.endpoint, "s3.region": self._region}
        return {name: value for name, value in named.items() if value}

    @property
    def spark_options(self) -> Mapping[str, str]:
        """What Spark's S3 client reads. Its Python workers write the files, by Arrow."""
        options = {
            # Arrow and Iceberg know no s3a://.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            f"{_S3A}.aws.credentials.provider": "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
            # The default one needs Amazon's asynchronous client.
            f"{_S3A}.input.stream.type": "classic",
        }
        if self.endpoint:
            options |= {
                f"{_S3A}.endpoint": self.endpoint,
                f"{_S3A}.path.style.access": "true",
                f"{_S3A}.connection.ssl.enabled": str(self.endpoint.startswith("https")).lower(),
            }
        if self._region:
            options[f"{_S3A}.endpoint.region"] = self._region
        return options | {f"spark.executorEnv.{name}": value for name, value in self.environment.items()}

    @property
    def _region(self) -> str | None:
        return self.region or (_ANY_REGION if self.endpoint else None)


def is_object(uri: str) -> bool:
    """Whether a URI names something in object storage."""
    return uri.startswith(SCHEME)
